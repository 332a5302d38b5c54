//! Compares the results of both decoders.

use crate::draw::{self, Draw};
use millpond_otlp::{AnyValue, Item, KeyValue, Reason, Request, Resource, Scope};
use opentelemetry_proto::tonic::common::v1 as common;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1 as resource;

/// One signal: draws its requests and compares its items.
pub(crate) trait Signal {
    type Ours<'a>: Item<'a>;
    type Theirs: prost::Message + Default + Clone;
    type TheirItem;

    fn item(draw: &mut Draw) -> Vec<u8>;
    /// The resources of prost's decoder, with schema URL and scopes.
    fn resources(theirs: &Self::Theirs) -> Vec<Group<'_, Self::TheirItem>>;
    /// Asserts that the items are equal and returns the number of records.
    fn assert_same(ours: Self::Ours<'_>, theirs: &Self::TheirItem) -> usize;
    fn records(theirs: &Self::TheirItem) -> usize;
    /// Returns true if prost counts records differently, where we follow the Collector.
    fn is_counted_otherwise(_: &[u8]) -> bool {
        false
    }
}

/// Prost's reading of a resource and its scopes.
pub(crate) struct Group<'a, T> {
    pub(crate) resource: Option<&'a resource::Resource>,
    pub(crate) schema_url: &'a str,
    pub(crate) scopes: Vec<Scoped<'a, T>>,
}

pub(crate) struct Scoped<'a, T> {
    pub(crate) scope: Option<&'a common::InstrumentationScope>,
    pub(crate) schema_url: &'a str,
    pub(crate) items: &'a [T],
}

pub(crate) fn request<S: Signal>(entropy: &[u8]) -> Vec<u8> {
    draw::request(&mut Draw(entropy.iter()), S::item)
}

/// Every field of every view equals what prost decoded.
pub(crate) fn assert_same<S: Signal>(bytes: &[u8], theirs: &S::Theirs) {
    let ours: Request<S::Ours<'_>> = Request::parse(bytes).unwrap();
    let theirs = S::resources(theirs);
    let mut records = 0;
    assert_eq!(ours.resources().count(), theirs.len());
    for (ours, theirs) in ours.resources().zip(&theirs) {
        records += same_resource::<S>(&ours, theirs);
    }
    assert_eq!(ours.counts().records, records as u64);
}

fn same_resource<'a, S: Signal>(ours: &Resource<'a, S::Ours<'a>>, theirs: &Group<S::TheirItem>) -> usize {
    let resource = theirs.resource.cloned().unwrap_or_default();
    assert_eq!(ours.schema_url, theirs.schema_url.as_bytes());
    assert!(same_pairs(ours.attributes(), &resource.attributes));
    assert_eq!(ours.scopes().count(), theirs.scopes.len());
    let scopes = ours.scopes().zip(&theirs.scopes);
    scopes.map(|(ours, theirs)| same_scope::<S>(&ours, theirs)).sum()
}

fn same_scope<'a, S: Signal>(ours: &Scope<'a, S::Ours<'a>>, theirs: &Scoped<S::TheirItem>) -> usize {
    let scope = theirs.scope.cloned().unwrap_or_default();
    assert_eq!(ours.schema_url, theirs.schema_url.as_bytes());
    assert_eq!(ours.name, scope.name.as_bytes());
    assert_eq!(ours.version, scope.version.as_bytes());
    assert_eq!(ours.dropped_attributes_count, scope.dropped_attributes_count);
    assert!(same_pairs(ours.attributes(), &scope.attributes));
    assert_eq!(ours.items().count(), theirs.items.len());
    let items = ours.items().zip(theirs.items);
    items.map(|(ours, theirs)| S::assert_same(ours, theirs)).sum()
}

/// Runs both decoders on arbitrary bytes: they agree, or the difference is deliberate.
pub(crate) fn judge<S: Signal>(bytes: &[u8]) {
    let theirs = <S::Theirs as prost::Message>::decode(bytes);
    match (Request::<S::Ours<'_>>::parse(bytes), theirs) {
        (Ok(ours), Ok(theirs)) => {
            let groups = S::resources(&theirs);
            let items = groups
                .iter()
                .flat_map(|group| &group.scopes)
                .flat_map(|scope| scope.items);
            let records: usize = items.map(S::records).sum();
            // prost does not know the predecessor of the scopes field, which counts if scopes are absent.
            let old = groups.iter().any(|group| group.scopes.is_empty());
            assert!(ours.counts().records == records as u64 || old || S::is_counted_otherwise(bytes));
        }
        (Err(_), Err(_)) => {}
        (Ok(_), Err(theirs)) => {
            // prost checks UTF-8; the Collector and we do not. prost also counts an unknown field as one more level of
            // nesting.
            let theirs = theirs.to_string();
            assert!(
                theirs.contains("UTF-8") || theirs.contains("recursion"),
                "only prost refuses: {theirs}"
            );
        }
        (Err(ours), Ok(_)) => {
            // prost skips groups in unknown fields, and does not look into the predecessor of the scopes field.
            let old = ours.field.contains("instrumentation_library_");
            assert!(ours.reason == Reason::Group || old, "only we refuse: {ours}");
        }
    }
}

pub(crate) fn same_value(ours: AnyValue, theirs: Option<&common::AnyValue>) -> bool {
    match (ours, theirs.and_then(|value| value.value.as_ref())) {
        (AnyValue::Empty, None) => true,
        (AnyValue::String(ours), Some(Value::StringValue(theirs))) => ours == theirs.as_bytes(),
        (AnyValue::Bool(ours), Some(Value::BoolValue(theirs))) => ours == *theirs,
        (AnyValue::Int(ours), Some(Value::IntValue(theirs))) => ours == *theirs,
        (AnyValue::Double(ours), Some(Value::DoubleValue(theirs))) => ours.to_bits() == theirs.to_bits(),
        (AnyValue::Bytes(ours), Some(Value::BytesValue(theirs))) => ours == theirs,
        (AnyValue::StringIndex(ours), Some(Value::StringValueStrindex(theirs))) => ours == *theirs,
        (AnyValue::Array(ours), Some(Value::ArrayValue(theirs))) => {
            ours.count() == theirs.values.len()
                && ours
                    .zip(&theirs.values)
                    .all(|(ours, theirs)| same_value(ours, Some(theirs)))
        }
        (AnyValue::Map(ours), Some(Value::KvlistValue(theirs))) => same_pairs(ours, &theirs.values),
        _ => false,
    }
}

pub(crate) fn same_pairs<'a>(ours: impl Iterator<Item = KeyValue<'a>>, theirs: &[common::KeyValue]) -> bool {
    let ours: Vec<_> = ours.collect();
    ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(ours, theirs)| {
            ours.key == theirs.key.as_bytes() && same_value(ours.value, theirs.value.as_ref())
        })
}

/// Tests for the requests of every signal.
macro_rules! properties {
    ($signal:ty) => {
        use proptest::prelude::*;
        use prost::Message as _;
        use $crate::compare::{assert_same, judge, request};

        type Theirs = <$signal as $crate::compare::Signal>::Theirs;

        proptest! {
            #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

            #[test]
            fn we_read_everything_that_prost_reads(entropy in proptest::collection::vec(any::<u8>(), 0..600)) {
                let bytes = request::<$signal>(&entropy);
                assert_same::<$signal>(&bytes, &Theirs::decode(&*bytes).unwrap());
            }

            #[test]
            fn we_read_everything_that_prost_writes(entropy in proptest::collection::vec(any::<u8>(), 0..600)) {
                let theirs = Theirs::decode(&*request::<$signal>(&entropy)).unwrap();
                assert_same::<$signal>(&theirs.encode_to_vec(), &theirs);
            }

            #[test]
            fn cut_short_it_is_refused_as_prost_refuses_it(
                entropy in proptest::collection::vec(any::<u8>(), 0..300),
                cut in any::<proptest::sample::Index>(),
            ) {
                let bytes = request::<$signal>(&entropy);
                judge::<$signal>(&bytes[..cut.index(bytes.len())]);
            }

            #[test]
            fn mutated_bytes_are_judged_as_prost_judges_them(
                entropy in proptest::collection::vec(any::<u8>(), 0..300),
                changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
            ) {
                let mut bytes = request::<$signal>(&entropy);
                for (place, byte) in changes {
                    let place = place.index(bytes.len());
                    bytes[place] = byte;
                }
                judge::<$signal>(&bytes);
            }

            #[test]
            fn random_bytes_are_judged_as_prost_judges_them(
                bytes in proptest::collection::vec(any::<u8>(), 0..200),
            ) {
                judge::<$signal>(&bytes);
            }
        }
    };
}

pub(crate) use properties;
