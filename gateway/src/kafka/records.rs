//! Puts records into messages of their streams, for the gateway's port and for bridges. Pure.

use std::sync::Arc;

use millpond_kafka::Record;
use millpond_segment::Encoding as StreamEncoding;

use super::rows::row;
use super::topics::{KafkaTopics, Shape, Topic, TopicEncoding};
use crate::rows::check_row;
use crate::tokens::Identity;

/// The way of a topic's records to a stream.
#[derive(Debug, Clone)]
pub struct Route(Topic);

impl KafkaTopics {
    /// The way of a topic's records, without any token's prefix.
    ///
    /// # Errors
    /// The topic has no valid stream, or is not listed and the file refuses such topics.
    pub fn route(&self, topic: &str) -> Result<Route, String> {
        let found = self.topic(topic, &Identity::anybody());
        found.map(Route).map_err(|fault| fault.message)
    }
}

impl Route {
    /// The stream.
    pub fn stream(&self) -> &Arc<str> {
        &self.0.stream
    }

    /// The encoding of the stream's messages.
    pub fn encoding(&self) -> StreamEncoding {
        self.0.encoding.of_stream()
    }

    /// Returns true if the rows have the records' keys and headers.
    pub fn has_metadata(&self) -> bool {
        matches!(
            self.0.encoding,
            TopicEncoding::Events(Shape::ValueAndMetadata | Shape::Raw)
        )
    }

    /// Appends a record to a message. Returns the number of the stream's records that it has.
    ///
    /// # Errors
    /// The record does not match the topic's encoding. The message is as before.
    pub fn add(&self, record: &Record<'_>, message: &mut Vec<u8>) -> Result<u64, String> {
        let length = message.len();
        let added = add(self.0.encoding, record, message);
        if added.is_err() {
            message.truncate(length);
        }
        added
    }
}

/// Writes a record as a raw row: its key, value, timestamp and headers.
pub fn raw_row(record: &Record<'_>, out: &mut Vec<u8>) {
    row(record, Shape::Raw, out);
}

/// Appends a record to a message, which may have a part of it after an error.
pub(super) fn add(
    encoding: TopicEncoding,
    record: &Record<'_>,
    message: &mut Vec<u8>,
) -> Result<u64, String> {
    match (encoding, record.value) {
        (TopicEncoding::Events(shape @ Shape::Raw), _) => add_row(record, shape, message),
        (_, None) => Err("the record has no value".to_owned()),
        (TopicEncoding::Events(shape), Some(_)) => add_row(record, shape, message),
        // Requests one after another are one request with all that they have: their only field is repeated.
        (TopicEncoding::Otlp(signal), Some(value)) => {
            let counts = millpond_otlp::validate(signal, value).map_err(|malformed| malformed.to_string())?;
            message.extend_from_slice(value);
            Ok(counts.records)
        }
    }
}

fn add_row(record: &Record<'_>, shape: Shape, message: &mut Vec<u8>) -> Result<u64, String> {
    if !message.is_empty() {
        message.push(b'\n');
    }
    let start = message.len();
    row(record, shape, message);
    check_row(&message[start..])?;
    Ok(1)
}
