//! Commits offsets to Kafka. rdkafka's own call leaves out the answer, so nobody would learn when a commit ends.

use std::ptr;

use rdkafka::TopicPartitionList;
use rdkafka::bindings::{
    rd_kafka_commit_queue, rd_kafka_queue_destroy, rd_kafka_queue_get_consumer, rd_kafka_resp_err_t,
};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;

use crate::client::Context;

/// Begins to commit offsets. The answer arrives at [`Context`] with a poll, also if it is an error.
#[expect(
    unsafe_code,
    reason = "librdkafka's commit has no other interface with an answer"
)]
pub(crate) fn commit(
    consumer: &BaseConsumer<Context>,
    offsets: &TopicPartitionList,
) -> Result<(), RDKafkaErrorCode> {
    let client = consumer.client().native_ptr();
    // SAFETY: the client and the list live as long as the borrows. librdkafka copies the list, and the reference to the
    // queue ends here.
    let error = unsafe {
        let queue = rd_kafka_queue_get_consumer(client);
        let error = rd_kafka_commit_queue(client, offsets.ptr(), queue, None, ptr::null_mut());
        rd_kafka_queue_destroy(queue);
        error
    };
    match error {
        rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        error => Err(error.into()),
    }
}
