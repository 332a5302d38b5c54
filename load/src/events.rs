//! Requests of JSON events: a line with an object for each record, whose id and time are filled in. It never builds a value per
//! record: the load generator must cost little compared to the system under load.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use crate::bodies::Body;
use crate::random::mix;
use crate::template::{ID_DIGITS, severity};

/// All events of a run.
#[derive(Debug)]
pub(crate) struct Events {
    /// Everything before the record's number.
    head: String,
    /// Everything after the time, for each body.
    tails: Vec<String>,
    seed: u64,
}

impl Events {
    pub(crate) fn new(bodies: &[Body], id_field: &str, run: &str, seed: u64) -> Events {
        let field = serde_json::Value::from(id_field);
        Events {
            head: format!("{{{field}:\"{run}-"),
            tails: (0u64..)
                .zip(bodies)
                .map(|(n, body)| tail(body, mix(seed ^ n)))
                .collect(),
            seed,
        }
    }

    /// The lines of records `first..first + count` at time `now_ns` (Unix).
    pub(crate) fn request(&self, first: u64, count: u64, now_ns: u64) -> Bytes {
        let mut lines = String::new();
        for n in first..first + count {
            let time = UNIX_EPOCH + Duration::from_nanos(now_ns + (n - first));
            let time = humantime::format_rfc3339_nanos(time);
            let tail = usize::try_from(mix(self.seed ^ n) % self.tails.len() as u64).unwrap_or(0);
            let (head, tail) = (&self.head, &self.tails[tail]);
            writeln!(lines, "{head}{n:0ID_DIGITS$}\",\"time\":\"{time}\"{tail}")
                .expect("a string takes everything");
        }
        lines.into()
    }
}

fn tail(body: &Body, random: u64) -> String {
    let rest = serde_json::json!({
        "severity": severity(&body.line).1,
        "message": body.line,
        "file": body.file,
        "user": { "id": format!("u-{}", random >> 16 & 0xffff) },
        "status": if random & 31 == 0 { 500 } else { 200 },
        "amount": (random >> 32 & 0xffff) as f64 / 100.0,
    });
    // The opening brace belongs to the head.
    format!(",{}", &rest.to_string()[1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bodies::Bodies;

    #[test]
    fn each_line_is_an_event_with_its_id_and_time() {
        let mut bodies = Bodies::load(None).expect("generated lines").bodies;
        bodies[0].line = "a \"quoted\" line\nthat goes on".to_owned();
        let events = Events::new(&bodies[..1], "an \"id\"", "run", 1);
        let request = events.request(7, 3, 1_764_000_000_123_456_789);
        let lines: Vec<_> = request.split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 4, "each line ends");
        for (n, line) in (7..10).zip(&lines) {
            let event: serde_json::Value = serde_json::from_slice(line).expect("an object");
            assert_eq!(event["an \"id\""], format!("run-{n:012}"));
            assert_eq!(
                event["time"],
                format!("2025-11-24T16:00:00.{}Z", 123_456_789 + n - 7)
            );
            assert_eq!(event["message"], bodies[0].line.as_str());
        }
        assert_eq!(request, events.request(7, 3, 1_764_000_000_123_456_789));
    }
}
