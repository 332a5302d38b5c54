//! Asks for the id of Kafka's cluster. rdkafka's own call never frees librdkafka's answer, and the bridge asks in each turn of its loop.

use std::ffi::CStr;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::bindings::{rd_kafka_clusterid, rd_kafka_mem_free};
use rdkafka::client::Client;

/// Returns the cluster's id as the brokers last reported it, or `None` if none has reported it within `wait`.
#[expect(
    unsafe_code,
    reason = "librdkafka's cluster id has no other interface that frees it"
)]
pub(crate) fn cluster_id<C: ClientContext>(client: &Client<C>, wait: Duration) -> Option<String> {
    let client = client.native_ptr();
    let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the client lives as long as the borrow. The answer is null, or a C string that belongs to the caller: it is copied,
    // and freed once, by librdkafka's allocator.
    let id = unsafe {
        let answer = rd_kafka_clusterid(client, wait_ms);
        if answer.is_null() {
            return None;
        }
        let id = CStr::from_ptr(answer).to_bytes().to_vec();
        rd_kafka_mem_free(client, answer.cast());
        id
    };
    String::from_utf8(id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer};

    /// The number of calls. Each answer that is kept takes 32 bytes of the heap.
    const CALLS: usize = 2_000_000;

    /// Half of what the answers would take.
    const GROWTH_MAX: usize = CALLS * 16;

    /// The resident memory of this process, in bytes.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib << 10
    }

    #[test]
    fn answers_are_freed() {
        let mut config = ClientConfig::new();
        // librdkafka's mock of a cluster, on this host.
        let config = config.set("test.mock.num.brokers", "1");
        let consumer: BaseConsumer = config.create().unwrap();
        let client = consumer.client();
        let id = cluster_id(client, Duration::from_secs(30));
        assert!(id.is_some(), "the mock does not answer");
        let before = resident();
        for _ in 0..CALLS {
            assert_eq!(cluster_id(client, Duration::ZERO), id);
        }
        let growth = resident().saturating_sub(before);
        assert!(growth < GROWTH_MAX, "{CALLS} calls took {growth} bytes");
    }
}
