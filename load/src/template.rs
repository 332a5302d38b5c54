//! Requests from templates: every body is encoded once as a log record. A request consists of copies of such records,
//! with times, ids and numbers patched in place. It never builds a message per record: the load generator must cost
//! little compared to the system under load.

use bytes::Bytes;

use crate::bodies::Body;
use crate::random::mix;
use crate::wire::Writer;

/// Digits of a record's number in its id: fixed, so that it can be patched in place.
pub const ID_DIGITS: usize = 12;

/// Number of simulated hosts; each request comes from one.
const HOSTS: u64 = 16;

/// An encoded record and its patch positions.
#[derive(Debug)]
struct Template {
    record: Vec<u8>,
    time: usize,
    observed: usize,
    /// Positions of the 16-byte trace id and the 8-byte span id. Some records have no trace.
    trace: Option<(usize, usize)>,
    number: usize,
}

/// All templates of a run.
#[derive(Debug)]
pub(crate) struct Templates {
    templates: Vec<Template>,
    /// `Resource` and everything else before the records, per host.
    resources: Vec<Vec<u8>>,
    scope: Vec<u8>,
    seed: u64,
}

impl Templates {
    pub(crate) fn new(bodies: &[Body], unique_attribute: &str, run: &str, seed: u64) -> Templates {
        let templates = (0u64..)
            .zip(bodies)
            .map(|(n, body)| template(body, unique_attribute, run, mix(seed ^ n)))
            .collect();
        let mut scope = Writer::default();
        scope.message(1, |scope| {
            scope.bytes(1, b"millpond.load");
            scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
        });
        Templates {
            templates,
            resources: (0..HOSTS).map(resource).collect(),
            scope: scope.bytes,
            seed,
        }
    }

    /// The request with records `first..first + count` at time `now_ns` (Unix).
    pub(crate) fn request(&self, first: u64, count: u64, now_ns: u64) -> Bytes {
        let resource = &self.resources[self.pick(first, self.resources.len())];
        let chosen =
            || (first..first + count).map(|n| (n, &self.templates[self.pick(n, self.templates.len())]));
        let records: usize = chosen().map(|(_, template)| template.record.len()).sum();
        let scope_logs = self.scope.len() + records;
        let resource_logs = resource.len() + head_length(scope_logs) + scope_logs;
        let mut request = Writer {
            bytes: Vec::with_capacity(head_length(resource_logs) + resource_logs),
        };
        request.head(1, resource_logs);
        request.bytes.extend_from_slice(resource);
        request.head(2, scope_logs);
        request.bytes.extend_from_slice(&self.scope);
        for (n, template) in chosen() {
            let start = request.bytes.len();
            request.bytes.extend_from_slice(&template.record);
            template.patch(
                &mut request.bytes[start..],
                n,
                mix(self.seed ^ n),
                now_ns + (n - first),
            );
        }
        request.bytes.into()
    }

    fn pick(&self, n: u64, of: usize) -> usize {
        usize::try_from(mix(self.seed ^ n) % of as u64).unwrap_or(0)
    }
}

impl Template {
    fn patch(&self, record: &mut [u8], n: u64, random: u64, time_ns: u64) {
        record[self.time..][..8].copy_from_slice(&time_ns.to_le_bytes());
        record[self.observed..][..8].copy_from_slice(&(time_ns + 1_000_000).to_le_bytes());
        if let Some((trace, span)) = self.trace {
            record[trace..][..8].copy_from_slice(&random.to_le_bytes());
            record[trace + 8..][..8].copy_from_slice(&mix(random).to_le_bytes());
            record[span..][..8].copy_from_slice(&mix(!random).to_le_bytes());
        }
        let mut rest = n;
        for digit in record[self.number..][..ID_DIGITS].iter_mut().rev() {
            *digit = b'0' + (rest % 10).to_le_bytes()[0];
            rest /= 10;
        }
    }
}

/// Length of a field's head, for the field numbers below 16 in use here.
fn head_length(length: usize) -> usize {
    let mut head = Writer::default();
    head.head(1, length);
    head.bytes.len()
}

fn resource(host: u64) -> Vec<u8> {
    const SERVICES: [&str; 4] = ["checkout", "inventory", "payments", "search"];
    let service = SERVICES[usize::try_from(host % 4).unwrap_or(0)];
    let mut resource_logs = Writer::default();
    resource_logs.message(1, |resource| {
        resource.attribute(1, "service.name", service);
        resource.attribute(1, "service.namespace", "shop");
        resource.attribute(1, "service.version", "2.14.3");
        resource.attribute(
            1,
            "host.name",
            &format!("ip-10-0-{}-{}.internal", host / 8, 16 + host * 7),
        );
        resource.attribute(1, "k8s.cluster.name", "production-1");
        resource.attribute(1, "k8s.namespace.name", "shop");
        resource.attribute(1, "k8s.deployment.name", service);
        let pod = mix(host);
        resource.attribute(
            1,
            "k8s.pod.name",
            &format!("{service}-{:010x}-{:05x}", pod >> 24, pod & 0xf_ffff),
        );
    });
    resource_logs.bytes
}

fn template(body: &Body, unique_attribute: &str, run: &str, random: u64) -> Template {
    let (severity_number, severity_text) = severity(&body.line);
    let mut outer = Writer::default();
    let ((time, observed, trace, number), start) = outer.message(2, |record| {
        let time = record.fixed64(1, 0);
        record.uint(2, severity_number);
        record.bytes(3, severity_text.as_bytes());
        record.message(5, |any| any.bytes(1, body.line.as_bytes()));
        let id = record.attribute(6, unique_attribute, &format!("{run}-{:0ID_DIGITS$}", 0));
        record.attribute(6, "log.file.name", &body.file);
        record.attribute(
            6,
            "log.iostream",
            if random & 7 == 0 { "stderr" } else { "stdout" },
        );
        record.int_attribute(6, "thread.id", 1 + (random >> 8 & 63));
        record.attribute(
            6,
            "http.request.method",
            if random & 3 == 0 { "POST" } else { "GET" },
        );
        record.int_attribute(
            6,
            "http.response.status_code",
            if random & 31 == 0 { 500 } else { 200 },
        );
        record.attribute(
            6,
            "client.address",
            &format!("10.1.{}.{}", random >> 16 & 15, random >> 24 & 255),
        );
        record.attribute(6, "url.path", &format!("/api/v1/orders/{}", random >> 32 & 1023));
        let trace = (random >> 42 & 3 != 0).then(|| {
            record.fixed32(8, 1);
            (record.bytes(9, &[0; 16]), record.bytes(10, &[0; 8]))
        });
        let observed = record.fixed64(11, 0);
        (time, observed, trace, id + run.len() + 1)
    });
    Template {
        record: outer.bytes,
        time: start + time,
        observed: start + observed,
        trace: trace.map(|(trace, span)| (start + trace, start + span)),
        number: start + number,
    }
}

/// The severity of the line in OTLP's numbers; INFO if the line has none.
pub(crate) fn severity(line: &str) -> (u64, &'static str) {
    const WORDS: [(&str, u64, &str); 8] = [
        ("FATAL", 21, "FATAL"),
        ("ERROR", 17, "ERROR"),
        ("[error]", 17, "ERROR"),
        ("WARN", 13, "WARN"),
        ("warn", 13, "WARN"),
        ("DEBUG", 5, "DEBUG"),
        ("TRACE", 1, "TRACE"),
        ("INFO", 9, "INFO"),
    ];
    let found = WORDS.iter().find(|(word, ..)| line.contains(word));
    found.map_or((9, "INFO"), |(_, number, text)| (*number, text))
}
