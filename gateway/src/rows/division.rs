//! Divides the rows of a message among the shards of their keys. Pure: it copies rows, and never changes one.

use std::collections::BTreeMap;

use bytes::Bytes;
use millpond_events::{KeyHasher, KeyPaths};
use millpond_producer::Route;

use super::{extent, skip_whitespace};

/// The place of rows that belong to no shard. A shard's number is below 10,000.
const REST: u16 = u16::MAX;

/// Where each row of a message goes.
#[derive(Debug)]
pub struct Division {
    /// The shard of each row, or [`REST`].
    places: Vec<u16>,
    parts: BTreeMap<u16, Size>,
    rest_in: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct Size {
    bytes: usize,
    rows: u64,
}

/// Some rows of a message, with a newline between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The shard that they go to.
    pub shard: u32,
    /// The rows, in their order.
    pub payload: Bytes,
    /// The number of rows.
    pub records: u64,
}

/// The rows of a message, divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// Rows with a key, in ascending order of their shards.
    pub keyed: Vec<Part>,
    /// The rows without a key, and with a number those with a key that go to the same shard. `None`: every row is in `keyed`.
    pub rest: Option<Part>,
}

impl Division {
    /// The memory that it takes for each row.
    pub const ROW_BYTES: usize = size_of::<u16>();

    /// Reads the keys of a message with this number of rows. Rows without a key go to the shard `rest_in`. `has_rest`: something goes there
    /// also if no row does.
    pub fn of(payload: &[u8], rows: u64, route: &Route, rest_in: u32, has_rest: bool) -> Division {
        let (paths, mut hasher) = (KeyPaths::new(&route.key), KeyHasher::default());
        let mut division = Division {
            places: Vec::with_capacity(usize::try_from(rows).unwrap_or_default()),
            parts: BTreeMap::new(),
            rest_in,
        };
        if has_rest {
            division.parts.insert(REST, Size::default());
        }
        each_row(payload, |row| {
            let key = std::str::from_utf8(row).ok();
            let key = key.and_then(|row| paths.key(row, &mut hasher));
            let place = key.map_or(REST, |key| {
                u16::try_from(route.shard_of(key)).expect("a buffer has at most 10,000 shards")
            });
            division.places.push(place);
            division.parts.entry(place).or_default().add(row.len(), 1);
        });
        // In a message without a number, rows with a key do not wait for the other parts: rows of a later message would overtake them.
        if has_rest {
            division.join_rest();
        }
        division
    }

    /// Rows that belong to the shard of the rest go with it.
    fn join_rest(&mut self) {
        let Ok(joins) = u16::try_from(self.rest_in) else {
            return;
        };
        if let Some(rest) = self.parts.get(&REST).copied()
            && let Some(mut joined) = self.parts.remove(&joins)
        {
            joined.add(rest.bytes, rest.rows);
            self.parts.insert(REST, joined);
            let places = self.places.iter_mut().filter(|place| **place == joins);
            places.for_each(|place| *place = REST);
        }
    }

    /// Returns true if one part has all rows, so that no row is copied.
    pub fn is_whole(&self) -> bool {
        self.parts.values().filter(|size| size.rows > 0).count() <= 1
    }

    /// The number of parts.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// The bytes of the parts, the rest's last.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.parts.values().map(|size| size.bytes)
    }

    /// Returns true if there is no part.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Divides the message that it was made of. The parts together have at most the bytes of the message.
    pub fn parts(&self, payload: &Bytes) -> Parts {
        let messages = match self.is_whole() {
            true => self.whole(payload),
            false => self.copied(payload),
        };
        let mut parts = Parts {
            keyed: Vec::with_capacity(messages.len()),
            rest: None,
        };
        for (place, payload) in messages {
            let records = self.parts[&place].rows;
            let part = |shard| Part {
                shard,
                payload,
                records,
            };
            match place {
                REST => parts.rest = Some(part(self.rest_in)),
                shard => parts.keyed.push(part(shard.into())),
            }
        }
        parts
    }

    fn whole(&self, payload: &Bytes) -> BTreeMap<u16, Bytes> {
        let parts = self.parts.iter();
        let message = |(place, size): (&u16, &Size)| {
            let payload = match size.rows {
                0 => Bytes::new(),
                _ => payload.clone(),
            };
            (*place, payload)
        };
        parts.map(message).collect()
    }

    fn copied(&self, payload: &[u8]) -> BTreeMap<u16, Bytes> {
        let parts = self.parts.iter();
        let mut messages: BTreeMap<u16, Vec<u8>> = parts
            .map(|(place, size)| (*place, Vec::with_capacity(size.bytes)))
            .collect();
        let mut places = self.places.iter();
        each_row(payload, |row| {
            if let Some(message) = places.next().and_then(|place| messages.get_mut(place)) {
                if !message.is_empty() {
                    message.push(b'\n');
                }
                message.extend_from_slice(row);
            }
        });
        let messages = messages.into_iter();
        messages.map(|(place, message)| (place, message.into())).collect()
    }
}

impl Size {
    /// Adds rows, and the newline before them if there are some already.
    fn add(&mut self, bytes: usize, rows: u64) {
        self.bytes += bytes + usize::from(self.rows > 0 && rows > 0);
        self.rows += rows;
    }
}

/// Passes each row of a message, whose rows are accepted.
fn each_row<'m>(message: &'m [u8], mut take: impl FnMut(&'m [u8])) {
    let mut at = skip_whitespace(message, 0);
    while at < message.len() {
        // An accepted row is an object, so it is not empty.
        let end = at + extent(&message[at..]).max(1);
        take(&message[at..end]);
        at = skip_whitespace(message, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{Form, read};
    use proptest::prelude::*;

    fn route(shards: u32) -> Route {
        let key = vec!["id".to_owned()];
        Route { key, shards }
    }

    fn division(body: &str, shards: u32, rest_in: u32, has_rest: bool) -> (Division, Bytes) {
        let rows = read(&Bytes::copy_from_slice(body.as_bytes()), Form::Any);
        let division = Division::of(&rows.payload, rows.accepted, &route(shards), rest_in, has_rest);
        (division, rows.payload)
    }

    fn divided(body: &str, shards: u32, rest_in: u32, has_rest: bool) -> Parts {
        let (division, payload) = division(body, shards, rest_in, has_rest);
        division.parts(&payload)
    }

    fn texts(part: &Part) -> (u32, &str, u64) {
        (
            part.shard,
            std::str::from_utf8(&part.payload).unwrap(),
            part.records,
        )
    }

    fn shard_of(row: &str, shards: u32) -> Option<u32> {
        let key = KeyPaths::new(&["id".to_owned()]).key(row, &mut KeyHasher::default());
        key.map(|key| route(shards).shard_of(key))
    }

    #[test]
    fn rows_with_one_key_go_together_and_the_others_to_the_shard_of_the_request() {
        // The keys of 1 and 4 are in different shards of two.
        assert_ne!(shard_of(r#"{"id":1}"#, 2), shard_of(r#"{"id":4}"#, 2));
        let body = r#"[{"id":1,"n":1},{"id":4},{"n":3},{"id":1,"n":4},{"id":null}]"#;
        let parts = divided(body, 2, 7, false);
        let one = shard_of(r#"{"id":1}"#, 2).unwrap();
        let (of_one, of_two) = match one {
            0 => (&parts.keyed[0], &parts.keyed[1]),
            _ => (&parts.keyed[1], &parts.keyed[0]),
        };
        assert_eq!(texts(of_one), (one, "{\"id\":1,\"n\":1}\n{\"id\":1,\"n\":4}", 2));
        assert_eq!(texts(of_two), (1 - one, r#"{"id":4}"#, 1));
        assert_eq!(
            texts(parts.rest.as_ref().unwrap()),
            (7, "{\"n\":3}\n{\"id\":null}", 2)
        );
    }

    #[test]
    fn rows_that_belong_to_the_shard_of_the_rest_go_with_it_in_their_order() {
        let body = "{\"id\":1}\n{\"n\":2}\n{\"id\":4}\n{\"id\":1}";
        let one = shard_of(r#"{"id":1}"#, 2).unwrap();
        // Without a number they do not wait for it.
        assert_eq!(divided(body, 2, one, false).keyed.len(), 2);
        let parts = divided(body, 2, one, true);
        assert_eq!(
            parts.keyed.iter().map(texts).collect::<Vec<_>>(),
            [(1 - one, r#"{"id":4}"#, 1)]
        );
        let rest = (one, "{\"id\":1}\n{\"n\":2}\n{\"id\":1}", 3);
        assert_eq!(texts(parts.rest.as_ref().unwrap()), rest);
    }

    /// The usual requests: all rows go to one shard.
    #[test]
    fn a_message_for_one_shard_is_not_copied() {
        for (body, shards, rest_in, has_rest, keyed) in [
            (r#"{"id":1}"#, 1, 0, true, 0),
            ("{\"id\":1}\n{\"n\":2}", 1, 0, true, 0),
            ("{\"id\":1}\n{\"id\":2}", 1, 5, false, 1),
            (r#"{"n":1}"#, 3, 5, false, 0),
            (r#"{"id":1}"#, 3, 5, true, 1),
        ] {
            let (division, payload) = division(body, shards, rest_in, has_rest);
            assert!(division.is_whole(), "{body}");
            let parts = division.parts(&payload);
            assert_eq!(parts.keyed.len(), keyed, "{body}");
            let all = parts.keyed.iter().chain(&parts.rest);
            let pointers: Vec<_> = all
                .filter(|part| part.records > 0)
                .map(|part| part.payload.as_ptr())
                .collect();
            assert_eq!(pointers, [payload.as_ptr()], "{body}");
        }
    }

    #[test]
    fn a_numbered_request_has_a_rest_although_no_row_is_in_it() {
        let other = (shard_of(r#"{"id":1}"#, 2).unwrap() + 1) % 2;
        let parts = divided(r#"{"id":1}"#, 2, other, true);
        assert_eq!(parts.keyed.len(), 1);
        assert_eq!(texts(parts.rest.as_ref().unwrap()), (other, "", 0));
        assert_eq!(texts(divided("", 2, 1, true).rest.as_ref().unwrap()), (1, "", 0));
        assert_eq!(divided(r#"{"id":1}"#, 2, other, false).rest, None);
    }

    proptest! {
        #[test]
        fn each_row_is_in_one_part_in_order_and_its_key_says_which(
            rows in proptest::collection::vec((0..6_u8, 0..4_u8), 0..40),
            shards in 1..5_u32,
            rest_in in 0..6_u32,
            has_rest: bool,
        ) {
            let rows: Vec<String> = (0..)
                .zip(rows)
                .map(|(number, (id, kind))| match kind {
                    0 => format!("{{\"number\":{number}}}"),
                    // It spans lines.
                    1 => format!("{{\n\"id\":\"{id}\",\"number\":{number}}}"),
                    _ => format!("{{\"id\":{id},\"number\":{number}}}"),
                })
                .collect();
            let body = rows.join("\n");
            let parts = divided(&body, shards, rest_in, has_rest);
            let mut expected: BTreeMap<Option<u32>, Vec<&str>> = BTreeMap::new();
            let is_rest = has_rest || rows.iter().any(|row| shard_of(row, shards).is_none());
            if is_rest {
                expected.entry(None).or_default();
            }
            for row in &rows {
                let shard = shard_of(row, shards).filter(|shard| !has_rest || *shard != rest_in);
                expected.entry(shard).or_default().push(row);
            }
            let keyed = parts.keyed.iter().map(|part| (Some(part.shard), part));
            let found: Vec<_> = parts.rest.iter().map(|part| (None, part)).chain(keyed).collect();
            prop_assert!(parts.rest.iter().all(|rest| rest.shard == rest_in));
            prop_assert!(parts.keyed.is_sorted_by_key(|part| part.shard));
            prop_assert_eq!(found.len(), expected.len());
            let mut bytes = 0;
            for ((shard, part), (expected_in, rows)) in found.into_iter().zip(expected) {
                prop_assert_eq!(shard, expected_in);
                prop_assert_eq!(part.records, rows.len() as u64);
                let expected = rows.join("\n");
                prop_assert_eq!(&*part.payload, expected.as_bytes());
                bytes += part.payload.len();
            }
            prop_assert!(bytes <= body.len());
        }
    }
}
