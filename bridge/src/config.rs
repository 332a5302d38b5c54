//! The settings of a bridge.

use std::collections::BTreeSet;
use std::time::Duration;

use millpond_gateway::KafkaTopics;
use rdkafka::ClientConfig;

/// The memory for a record that is read ahead: its keys and headers may take as much.
const RECORD_BYTES: usize = 64 << 10;

/// Where a partition without a position begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// At the oldest record.
    Earliest,
    /// At the end, as it was when a bridge first saw the partition.
    Latest,
    /// At the offset that the group has committed to Kafka, or at the oldest record.
    Committed,
}

/// Accepts that Kafka does not have the position of a partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AcceptedGap {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// Where the partition continues.
    pub landing: Landing,
}

/// Where a partition continues whose position Kafka does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Landing {
    /// At the oldest record, if Kafka has deleted the one at the position. It never goes back.
    Oldest,
    /// From exactly this position, at this offset, which may be before it. It applies once, because it begins another incarnation, and
    /// also if Kafka's end has passed the position meanwhile.
    Offset {
        /// The position that Kafka did not have.
        position: u64,
        /// The offset to continue at.
        offset: u64,
        /// The incarnation of the position: the number of times that it was set without records.
        incarnation: u64,
    },
}

/// The connection to Kafka's brokers.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// Whether the connections use TLS.
    pub tls: bool,
    /// CAs of the brokers, a file in PEM. `None`: the system's.
    pub ca: Option<String>,
    /// The client's certificate and its key, files in PEM.
    pub identity: Option<(String, String)>,
    /// SASL's mechanism, the user and the password.
    pub sasl: Option<(String, String, String)>,
}

/// The settings of a bridge.
#[derive(Debug, Clone)]
pub struct Config {
    /// Kafka's brokers: host:port, separated by commas.
    pub brokers: String,
    /// The topics to read.
    pub topics: Vec<String>,
    /// The consumer group, whose members divide the partitions.
    pub group: String,
    /// The streams and encodings of topics.
    pub routes: KafkaTopics,
    /// Where a partition without a position begins.
    pub from: From,
    /// The name of the source in the buffer. `None`: the id of Kafka's cluster.
    pub source: Option<String>,
    /// Records that are left out: topic, partition and offset.
    pub skipped: BTreeSet<(String, u32, u64)>,
    /// Positions that may move although Kafka does not have them.
    pub accepted_gaps: BTreeSet<AcceptedGap>,
    /// How the brokers are reached.
    pub security: Security,
    /// Time without a sign of life after which Kafka gives the partitions to other members.
    pub session_timeout: Duration,
    /// Maximum bytes of records that are read and not committed yet.
    pub in_flight_bytes: usize,
    /// Maximum bytes that librdkafka reads ahead.
    pub ahead_bytes: usize,
    /// Maximum time to commit what is read when the bridge stops.
    pub grace: Duration,
}

impl Config {
    /// The settings of librdkafka.
    pub(crate) fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        let ahead = self.ahead_bytes.max(1 << 20);
        client
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", &self.group)
            .set("client.id", "millpond-bridge")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // A position that Kafka does not have any more is an error, and never a jump.
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            // Without it, librdkafka takes a changed value for a good one, and passes over a changed length without an error.
            .set("check.crcs", "true")
            .set("allow.auto.create.topics", "false")
            // All partitions begin anew at the manifest's positions after a change of the group.
            .set("partition.assignment.strategy", "range,roundrobin")
            .set("session.timeout.ms", self.session_timeout.as_millis().to_string())
            .set(
                "heartbeat.interval.ms",
                (self.session_timeout.as_millis() / 4).clamp(1, 3_000).to_string(),
            )
            .set(
                "max.poll.interval.ms",
                (self.session_timeout.as_millis() * 2).max(300_000).to_string(),
            )
            // New partitions, and topics that did not exist, are found this soon.
            .set("topic.metadata.refresh.interval.ms", "30000")
            .set(
                "queued.max.messages.kbytes",
                (ahead >> 10).min(2_097_151).to_string(),
            )
            // The limit above counts values alone, so the number of records bounds keys and headers. A partition asks for more as soon
            // as there are fewer again.
            .set(
                "queued.min.messages",
                (ahead / RECORD_BYTES).clamp(100, 10_000).to_string(),
            )
            .set("fetch.queue.backoff.ms", "20")
            // Both limits count compressed bytes, and the second one applies to each broker. They are small because a response is
            // decompressed as a whole. librdkafka exceeds them for a batch that is larger.
            .set("fetch.message.max.bytes", (256 << 10).to_string())
            .set(
                "fetch.max.bytes",
                (ahead / 16).clamp(1 << 20, 1 << 30).to_string(),
            )
            .set("statistics.interval.ms", "2000")
            // A broker that is frozen must not hold up an end for a minute.
            .set("socket.timeout.ms", "10000")
            .set("reconnect.backoff.max.ms", "2000");
        self.security.apply(&mut client);
        client
    }
}

impl Security {
    /// Returns true if it needs a build with OpenSSL.
    pub(crate) fn needs_tls(&self) -> bool {
        self.tls
            || self
                .sasl
                .as_ref()
                .is_some_and(|(mechanism, ..)| mechanism != "PLAIN")
    }

    fn apply(&self, client: &mut ClientConfig) {
        let protocol = match (self.tls, self.sasl.is_some()) {
            (false, false) => "PLAINTEXT",
            (true, false) => "SSL",
            (false, true) => "SASL_PLAINTEXT",
            (true, true) => "SASL_SSL",
        };
        client.set("security.protocol", protocol);
        if let Some(ca) = &self.ca {
            client.set("ssl.ca.location", ca);
        }
        if let Some((certificate, key)) = &self.identity {
            client.set("ssl.certificate.location", certificate);
            client.set("ssl.key.location", key);
        }
        if let Some((mechanism, user, password)) = &self.sasl {
            client.set("sasl.mechanisms", mechanism);
            client.set("sasl.username", user);
            client.set("sasl.password", password);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(memory: usize) -> Config {
        Config {
            brokers: "localhost:9092".to_owned(),
            topics: vec!["orders".to_owned()],
            group: "millpond".to_owned(),
            routes: KafkaTopics::default(),
            from: From::Earliest,
            source: None,
            skipped: BTreeSet::new(),
            accepted_gaps: BTreeSet::new(),
            security: Security::default(),
            session_timeout: Duration::from_secs(45),
            in_flight_bytes: memory / 4,
            ahead_bytes: memory / 8,
            grace: Duration::from_secs(30),
        }
    }

    #[test]
    fn a_damaged_batch_is_an_error() {
        assert_eq!(config(512 << 20).client().get("check.crcs"), Some("true"));
    }

    /// librdkafka counts values alone, so a record that has only headers is bounded by the number of records.
    #[test]
    fn the_records_ahead_are_in_proportion_to_the_memory() {
        for (memory, records) in [(128, "256"), (512, "1024"), (64 << 10, "10000")] {
            let client = config(memory << 20).client();
            assert_eq!(client.get("queued.min.messages"), Some(records), "{memory} MiB");
        }
    }
}
