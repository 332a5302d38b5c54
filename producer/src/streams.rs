//! The known encoding of each stream. It rejects a message of another encoding before that message can spoil a segment.
//! The manifest's table is authoritative; this cache learns from it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use millpond_manifest::manifest::{STREAMS_MAX, Stream};
use millpond_segment::{Encoding, check_stream_name};

/// Maximum number of streams with events in a shard. Clients name them, and a stream is for ever: the streams of OTLP
/// keep room.
const EVENT_STREAMS_MAX: usize = STREAMS_MAX / 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    encodings: Arc<Mutex<HashMap<String, Encoding>>>,
}

impl Streams {
    /// Checks whether `stream` may take a message of this encoding. Returns the reason if it may not.
    pub(crate) fn admit(&self, stream: &str, encoding: Encoding) -> Result<(), String> {
        let mut encodings = self.encodings.lock().unwrap_or_else(PoisonError::into_inner);
        match encodings.get(stream) {
            Some(&known) if known == encoding => return Ok(()),
            Some(known) => return Err(format!("stream {stream} holds {known} messages, not {encoding}")),
            None => {}
        }
        check_stream_name(stream).map_err(|error| error.to_string())?;
        if encodings.len() >= STREAMS_MAX {
            return Err(format!(
                "stream {stream} is new, and the shard has its {STREAMS_MAX} streams already"
            ));
        }
        if encoding == Encoding::Ndjson && count(&encodings, encoding) >= EVENT_STREAMS_MAX {
            return Err(format!(
                "stream {stream} is new, and the shard has its {EVENT_STREAMS_MAX} streams of {encoding} already; use one of them"
            ));
        }
        encodings.insert(stream.to_owned(), encoding);
        Ok(())
    }

    /// Takes over the manifest's table. A full one gets no further stream, so the others are forgotten: their messages would
    /// spoil every segment that they enter.
    pub(crate) fn learn(&self, table: &[Stream]) {
        let mut encodings = self.encodings.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in table {
            match encodings.get_mut(&stream.name) {
                Some(known) => *known = stream.encoding,
                None => {
                    encodings.insert(stream.name.clone(), stream.encoding);
                }
            }
        }
        if table.len() >= STREAMS_MAX && encodings.len() > table.len() {
            let names: HashSet<&str> = table.iter().map(|stream| stream.name.as_str()).collect();
            encodings.retain(|name, _| names.contains(name.as_str()));
        }
    }
}

fn count(encodings: &HashMap<String, Encoding>, encoding: Encoding) -> usize {
    encodings.values().filter(|known| **known == encoding).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_its_encoding_and_the_manifest_is_right() {
        let streams = Streams::default();
        assert_eq!(streams.admit("a", Encoding::Otlp), Ok(()));
        assert_eq!(streams.admit("a", Encoding::Otlp), Ok(()));
        let refused = streams.admit("a", Encoding::Ndjson).unwrap_err();
        assert_eq!(refused, "stream a holds otlp messages, not ndjson");
        streams.learn(&[Stream {
            name: "a".into(),
            encoding: Encoding::Ndjson,
        }]);
        assert_eq!(streams.admit("a", Encoding::Ndjson), Ok(()));
        assert!(streams.admit("a/b", Encoding::Otlp).is_err());
    }

    #[test]
    fn the_number_of_streams_is_bounded() {
        let streams = Streams::default();
        for number in 0..STREAMS_MAX {
            streams.admit(&format!("s{number}"), Encoding::Otlp).unwrap();
        }
        assert!(streams.admit("one-more", Encoding::Otlp).is_err());
        assert_eq!(streams.admit("s7", Encoding::Otlp), Ok(()));
    }

    /// Otherwise every segment with one of their messages would be refused, with the records of others in it.
    #[test]
    fn streams_that_a_full_table_lacks_are_forgotten() {
        let streams = Streams::default();
        streams.admit("late", Encoding::Otlp).unwrap();
        let stream = |number| Stream {
            name: format!("s{number}"),
            encoding: Encoding::Otlp,
        };
        let table: Vec<_> = (0..STREAMS_MAX).map(stream).collect();
        streams.learn(&table);
        assert!(streams.admit("late", Encoding::Otlp).is_err());
        assert_eq!(streams.admit("s7", Encoding::Otlp), Ok(()));
    }

    #[test]
    fn streams_of_events_leave_room_for_others() {
        let streams = Streams::default();
        for number in 0..EVENT_STREAMS_MAX {
            streams.admit(&format!("e{number}"), Encoding::Ndjson).unwrap();
        }
        let refused = streams.admit("one-more", Encoding::Ndjson).unwrap_err();
        assert!(refused.contains("has its 256 streams of ndjson"), "{refused}");
        assert_eq!(streams.admit("e7", Encoding::Ndjson), Ok(()));
        assert_eq!(streams.admit("one-more", Encoding::Otlp), Ok(()));
    }
}
