//! Records the spans of a segment's path ([`millpond_manifest::trace`]) as OTLP spans. A root span keeps its descendants until it
//! closes: only then are its trace and the sampling decision known.

use crate::conventions::{Conventions, Field};
use crate::queue::Queue;
use crate::sampler::Sampler;
use millpond_manifest::trace::ORIGIN;
use millpond_runtime::{Environment as _, SystemEnvironment};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{self as otlp, Status};
use std::fmt;
use std::sync::Arc;
use tokio::time::Instant;
use tracing::field::{Field as Named, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Subscriber, event};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use ulid::Ulid;

/// Maximum events and links of a span. A counter counts the rest.
const EVENTS_MAX: usize = 32;
const LINKS_MAX: usize = 128;

/// Maximum descendants of a root span. A counter counts the rest.
const BELOW_MAX: usize = 256;

/// Maximum length of a value, in characters.
const CHARS_MAX: usize = 1_000;

/// The flags of a sampled span whose trace id has the random bits of W3C Trace Context Level 2.
const SAMPLED: u32 = 0x03;

/// The flags that tell whether the parent belongs to another process.
const PARENT_IS_KNOWN: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// Records spans into a queue.
#[derive(Debug)]
pub struct Spans {
    pub(crate) sampler: Sampler,
    pub(crate) conventions: Conventions,
    pub(crate) queue: Arc<Queue>,
}

/// A span in a recorded trace.
#[derive(Debug, Clone, Copy)]
struct Place {
    trace: u128,
    span: u64,
}

/// An open span.
struct Open {
    id: u64,
    /// Its direct parent.
    parent: Option<u64>,
    name: &'static str,
    start: u64,
    began: Instant,
    fields: Fields,
    events: Vec<Event>,
    events_dropped: u32,
    /// The place that a root span without a segment joins.
    joins: Option<Place>,
    links: Vec<Place>,
    links_dropped: u32,
    below: Vec<Closed>,
    below_dropped: i64,
}

/// A closed span.
struct Closed {
    open: Open,
    end: u64,
}

impl Open {
    fn link(&mut self, to: Place) {
        if self.links.len() < LINKS_MAX {
            self.links.push(to);
        } else {
            self.links_dropped += 1;
        }
    }
}

/// Recorded fields. The last value of a name wins.
#[derive(Default)]
struct Fields(Vec<Field>);

impl Fields {
    fn put(&mut self, field: &Named, value: Value) {
        match self.0.iter_mut().find(|(name, _)| *name == field.name()) {
            Some((_, known)) => *known = value,
            None => self.0.push((field.name(), value)),
        }
    }

    fn take_text(&mut self, name: &str) -> Option<String> {
        let place = self.0.iter().position(|(known, _)| *known == name)?;
        match self.0.remove(place).1 {
            Value::StringValue(text) => Some(text),
            _ => None,
        }
    }

    fn segment(&self) -> Option<Ulid> {
        self.0.iter().find_map(|(name, value)| match value {
            Value::StringValue(text) if *name == "segment" => text.parse().ok(),
            _ => None,
        })
    }
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Named, value: i64) {
        self.put(field, Value::IntValue(value));
    }

    fn record_u64(&mut self, field: &Named, value: u64) {
        self.put(field, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_bool(&mut self, field: &Named, value: bool) {
        self.put(field, Value::BoolValue(value));
    }

    fn record_str(&mut self, field: &Named, value: &str) {
        self.put(field, Value::StringValue(value.chars().take(CHARS_MAX).collect()));
    }

    fn record_debug(&mut self, field: &Named, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let parent = span.parent();
        let parent = parent.and_then(|parent| parent.extensions().get::<Open>().map(|open| open.id));
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(Open {
            // 0 means no id.
            id: SystemEnvironment.random().max(1),
            parent,
            name: attributes.metadata().name(),
            start: SystemEnvironment.now_ns(),
            began: Instant::now(),
            fields,
            events: Vec::new(),
            events_dropped: 0,
            joins: None,
            links: Vec::new(),
            links_dropped: 0,
            below: Vec::new(),
            below_dropped: 0,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            values.record(&mut open.fields);
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let (Some(span), Some(followed)) = (context.span(id), context.span(follows)) else {
            return;
        };
        let place = followed
            .extensions()
            .get::<Open>()
            .and_then(|open| self.place(open));
        let Some(place) = place else { return };
        let back = match span.extensions_mut().get_mut::<Open>() {
            None => None,
            Some(open) => match open.joins {
                None => {
                    open.joins = Some(place);
                    None
                }
                Some(joined) => {
                    open.link(place);
                    Some(Place {
                        trace: joined.trace,
                        span: open.id,
                    })
                }
            },
        };
        if let (Some(back), Some(open)) = (back, followed.extensions_mut().get_mut::<Open>()) {
            open.link(back);
        }
    }

    fn on_event(&self, event: &event::Event<'_>, context: Context<'_, S>) {
        let Some(span) = context.event_span(event) else {
            return;
        };
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<Open>() else {
            return;
        };
        if open.events.len() >= EVENTS_MAX {
            open.events_dropped += 1;
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        open.events.push(Event {
            time_unix_nano: open.now(),
            name: fields.take_text("message").unwrap_or_default(),
            attributes: self.conventions.attributes("", fields.0),
            dropped_attributes_count: 0,
        });
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<Open>() else {
            return;
        };
        let closed = Closed {
            end: open.now(),
            open,
        };
        match span.scope().skip(1).last() {
            None => self.finish(closed),
            Some(top) => {
                if let Some(top) = top.extensions_mut().get_mut::<Open>() {
                    if top.below.len() < BELOW_MAX {
                        top.below.push(closed);
                    } else {
                        top.below_dropped += 1;
                    }
                }
            }
        }
    }
}

impl Open {
    /// The time by the clock at the span's start, whatever happens to the time of day.
    fn now(&self) -> u64 {
        let since = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.start.saturating_add(since)
    }
}

/// The id of the first span in a segment's trace: the last, random bits of the segment's name.
fn origin(segment: Ulid) -> u64 {
    u64::try_from(segment.0 % (1 << 64)).unwrap_or(u64::MAX).max(1)
}

impl Spans {
    /// The place of a span with a segment, if the segment is sampled.
    fn place(&self, open: &Open) -> Option<Place> {
        let segment = open
            .fields
            .segment()
            .filter(|segment| self.sampler.takes(*segment))?;
        let span = if open.name == ORIGIN {
            origin(segment)
        } else {
            open.id
        };
        Some(Place {
            trace: segment.0,
            span,
        })
    }

    /// Finishes a root span.
    fn finish(&self, mut top: Closed) {
        let open = &top.open;
        let (place, parent, flags) = match (self.place(open), open.joins) {
            (Some(place), _) if open.name == ORIGIN => (place, None, 0),
            (Some(place), _) => {
                let segment = Ulid(place.trace);
                let remote = PARENT_IS_KNOWN | PARENT_IS_REMOTE;
                (place, Some(origin(segment)), remote)
            }
            (None, Some(joined)) => {
                let (trace, span) = (joined.trace, open.id);
                (Place { trace, span }, Some(joined.span), PARENT_IS_KNOWN)
            }
            (None, None) => return,
        };
        let below = std::mem::take(&mut top.open.below);
        let id = top.open.id;
        let mut spans = Vec::with_capacity(1 + below.len());
        for closed in below {
            let parent = closed
                .open
                .parent
                .map(|parent| if parent == id { place.span } else { parent });
            let of = Place {
                trace: place.trace,
                span: closed.open.id,
            };
            spans.push(self.span(closed, of, parent, PARENT_IS_KNOWN));
        }
        spans.push(self.span(top, place, parent, flags));
        self.queue.put(spans);
    }

    fn span(&self, closed: Closed, place: Place, parent: Option<u64>, flags: u32) -> otlp::Span {
        let Closed { mut open, end } = closed;
        let error = open.fields.take_text("error");
        let name = Conventions::name(open.name, &open.fields.0);
        if open.below_dropped > 0 {
            let dropped = Value::IntValue(open.below_dropped);
            open.fields.0.push(("spans_dropped", dropped));
        }
        let state = self.sampler.state();
        let link = |to: Place| Link {
            trace_id: to.trace.to_be_bytes().to_vec(),
            span_id: to.span.to_be_bytes().to_vec(),
            trace_state: state.clone(),
            flags: SAMPLED,
            ..Link::default()
        };
        otlp::Span {
            trace_id: place.trace.to_be_bytes().to_vec(),
            span_id: place.span.to_be_bytes().to_vec(),
            parent_span_id: parent.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
            flags: SAMPLED | flags,
            name,
            kind: Conventions::kind(open.name).into(),
            start_time_unix_nano: open.start,
            end_time_unix_nano: end,
            attributes: self.conventions.attributes(open.name, open.fields.0),
            events: open.events,
            dropped_events_count: open.events_dropped,
            links: open.links.into_iter().map(link).collect(),
            dropped_links_count: open.links_dropped,
            status: error.map(|message| Status {
                message,
                code: StatusCode::Error.into(),
            }),
            trace_state: state,
            ..otlp::Span::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_manifest::trace::TARGET;
    use tracing::field::Empty;
    use tracing::{Level, event, span};
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt;

    /// The highest and the lowest random bits: a ratio below 1 samples the first and not the second.
    const HIGH: Ulid = Ulid(0x0190_0000_0000_0000_00ff_ffff_ffff_ffff);
    const LOW: Ulid = Ulid(0x0190_0000_0000_0001_0000_0000_0000_0007);

    /// The spans that a process with this ratio records of its work.
    fn recorded(ratio: f64, work: impl FnOnce()) -> Vec<otlp::Span> {
        let queue = Arc::new(Queue::default());
        let spans = Spans {
            sampler: Sampler::new(ratio),
            conventions: Conventions::new(&"s3://bucket/prefix".parse().unwrap()),
            queue: queue.clone(),
        };
        let only = Targets::new().with_target(TARGET, Level::INFO);
        let registry = tracing_subscriber::registry().with(spans.with_filter(only));
        tracing::subscriber::with_default(registry, work);
        queue.take()
    }

    /// A producer's spans for a segment whose name is known at the end.
    fn produce(segment: Ulid) {
        let whole = span!(target: TARGET, parent: None, Level::INFO, ORIGIN, segment = Empty, records = 7, error = Empty);
        drop(span!(target: TARGET, parent: &whole, Level::INFO, "fill"));
        whole.record("segment", HIGH.to_string());
        let upload = span!(target: TARGET, parent: &whole, Level::INFO, "upload", key = "k", error = Empty);
        event!(target: TARGET, parent: &upload, Level::INFO, error = %"timed out", "retry");
        drop(upload);
        // The producer uploaded it again under another name.
        whole.record("segment", segment.to_string());
    }

    /// A consumer's spans for a batch of these segments.
    fn consume(segments: &[Ulid]) {
        let batch =
            span!(target: TARGET, parent: None, Level::INFO, "batch", stream = "otlp.logs", error = Empty);
        let parts = segments.iter().map(|segment| {
            let process = span!(target: TARGET, parent: None, Level::INFO, "process", segment = %segment, stream = "otlp.logs");
            batch.follows_from(&process);
            drop(span!(target: TARGET, parent: &process, Level::INFO, "fetch"));
            process
        });
        let parts: Vec<_> = parts.collect();
        let insert = span!(target: TARGET, parent: &batch, Level::INFO, "insert", sink = "clickhouse:otel.x", error = Empty);
        insert.record("error", "no such table");
        drop(insert);
        drop(parts);
    }

    fn named(spans: &[otlp::Span], name: &str) -> otlp::Span {
        let mut found = spans.iter().filter(|span| span.name == name);
        let span = found.next().unwrap_or_else(|| panic!("no {name} in {spans:?}"));
        assert!(found.next().is_none(), "more than one {name}");
        span.clone()
    }

    #[test]
    fn the_spans_of_both_processes_are_one_tree() {
        let mut all = recorded(1.0, || produce(LOW));
        all.extend(recorded(1.0, || consume(&[LOW])));
        let names = [
            "send segment",
            "fill",
            "upload",
            "process otlp.logs",
            "fetch",
            "batch otlp.logs",
            "INSERT otel",
        ];
        assert_eq!(all.len(), names.len(), "{all:?}");
        let [send, fill, upload, process, fetch, batch, insert] = names.map(|name| named(&all, name));
        assert_eq!(send.trace_id, LOW.0.to_be_bytes());
        assert!(
            all.iter()
                .all(|span| span.trace_id == send.trace_id && span.flags & SAMPLED == SAMPLED)
        );
        assert_eq!(send.span_id, 7_u64.to_be_bytes());
        assert!(send.parent_span_id.is_empty());
        for (span, parent) in [
            (&fill, &send),
            (&upload, &send),
            (&process, &send),
            (&fetch, &process),
            (&batch, &process),
            (&insert, &batch),
        ] {
            assert_eq!(span.parent_span_id, parent.span_id, "{}", span.name);
        }
        assert_eq!(process.flags & PARENT_IS_REMOTE, PARENT_IS_REMOTE);
        assert_eq!(fetch.flags & PARENT_IS_REMOTE, 0);
        assert!(send.start_time_unix_nano <= upload.start_time_unix_nano);
        assert!(upload.end_time_unix_nano <= send.end_time_unix_nano);
    }

    #[test]
    fn retries_are_events_and_failures_a_status() {
        let all = recorded(1.0, || {
            produce(LOW);
            consume(&[LOW]);
        });
        let upload = named(&all, "upload");
        assert_eq!(upload.status, None);
        let [retry] = &upload.events[..] else {
            panic!("{:?}", upload.events)
        };
        assert_eq!(
            (retry.name.as_str(), retry.attributes[0].key.as_str()),
            ("retry", "exception.message")
        );
        let status = named(&all, "INSERT otel").status.unwrap();
        assert_eq!(
            (status.message.as_str(), status.code()),
            ("no such table", StatusCode::Error)
        );
    }

    #[test]
    fn a_segment_is_recorded_by_all_processes_of_a_ratio_or_by_none() {
        let names = |spans: Vec<otlp::Span>| spans.len();
        assert_eq!(names(recorded(0.5, || produce(HIGH))), 3);
        assert_eq!(names(recorded(0.5, || consume(&[HIGH]))), 4);
        assert_eq!(names(recorded(0.5, || produce(LOW))), 0);
        assert_eq!(names(recorded(0.5, || consume(&[LOW]))), 0);
        assert_eq!(
            named(&recorded(0.5, || produce(HIGH)), "fill").trace_state,
            "ot=th:8"
        );
        // A segment without a name has no trace, for instance after an encoding error.
        let nameless = || drop(span!(target: TARGET, parent: None, Level::INFO, ORIGIN, segment = Empty));
        assert_eq!(names(recorded(1.0, nameless)), 0);
    }

    #[test]
    fn a_batch_is_in_the_trace_of_its_first_recorded_segment_and_linked_with_the_others() {
        let other = Ulid(HIGH.0 + (1 << 100));
        let all = recorded(0.5, || consume(&[LOW, HIGH, other]));
        let of = |segment: Ulid, name: &str| {
            let trace = segment.0.to_be_bytes();
            let of: Vec<_> = all
                .iter()
                .filter(|span| span.trace_id == trace)
                .cloned()
                .collect();
            named(&of, name)
        };
        let batch = of(HIGH, "batch otlp.logs");
        assert_eq!(batch.parent_span_id, of(HIGH, "process otlp.logs").span_id);
        let linked = |span: &otlp::Span| -> Vec<_> {
            let links = span.links.iter();
            links
                .map(|link| (link.trace_id.clone(), link.span_id.clone()))
                .collect()
        };
        let part = of(other, "process otlp.logs");
        assert_eq!(linked(&batch), [(part.trace_id.clone(), part.span_id.clone())]);
        assert_eq!(linked(&part), [(batch.trace_id.clone(), batch.span_id.clone())]);
        assert_eq!(part.parent_span_id, origin(other).to_be_bytes());
        // Two parts with a fetch each, the batch and its insert.
        assert_eq!(all.len(), 6);
    }

    #[test]
    fn the_spans_of_a_trace_are_bounded() {
        let all = recorded(1.0, || {
            let whole = span!(target: TARGET, parent: None, Level::INFO, ORIGIN, segment = %LOW, key = Empty);
            whole.record("key", "ü".repeat(2 * CHARS_MAX));
            for _ in 0..BELOW_MAX + 3 {
                drop(span!(target: TARGET, parent: &whole, Level::INFO, "fill"));
            }
            for _ in 0..EVENTS_MAX + 2 {
                event!(target: TARGET, parent: &whole, Level::INFO, "retry");
            }
        });
        assert_eq!(all.len(), 1 + BELOW_MAX);
        let send = named(&all, "send segment");
        assert_eq!((send.events.len(), send.dropped_events_count), (EVENTS_MAX, 2));
        let value = |key: &str| {
            let found = send.attributes.iter().find(|attribute| attribute.key == key);
            found.unwrap().value.clone().unwrap().value.unwrap()
        };
        assert_eq!(value("millpond.spans_dropped"), Value::IntValue(3));
        let Value::StringValue(key) = value("aws.s3.key") else {
            panic!("no text")
        };
        assert_eq!(key.chars().count(), "prefix/".len() + CHARS_MAX);
    }
}
