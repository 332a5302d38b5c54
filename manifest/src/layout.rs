//! The keys of a buffer's objects, relative to its URL, and the rules for names in them.

use thiserror::Error;
use ulid::Ulid;

/// The key of the object that identifies the buffer.
pub const BUFFER: &str = "buffer";

/// The beginning of the keys of a shard's objects.
pub fn shard(shard: u32) -> String {
    format!("shards/{shard:04}/")
}

/// The key of a shard's manifest.
pub fn manifest(shard: u32) -> String {
    format!("shards/{shard:04}/manifest")
}

/// The key of a segment.
pub fn segment(shard: u32, segment: Ulid) -> String {
    format!("shards/{shard:04}/segments/{segment}")
}

/// The key of a page: `first` is the sequence of its first entry.
pub fn page(shard: u32, first: u64, page: Ulid) -> String {
    format!("shards/{shard:04}/pages/{first:020}-{page}")
}

/// The folder of a shard's pages.
pub fn pages(shard: u32) -> String {
    format!("shards/{shard:04}/pages")
}

/// The key of a consumer's cursor in a shard.
pub fn cursor(shard: u32, consumer: &str) -> String {
    format!("shards/{shard:04}/consumers/{consumer}/cursor")
}

/// The consumer whose cursor in this shard has this key. `None` for other objects, and for cursors of repairs.
pub fn reader_of_cursor(shard: u32, key: &str) -> Option<&str> {
    let name = key.strip_prefix(&consumers(shard))?.strip_prefix('/')?;
    let name = name.strip_suffix("/cursor")?;
    check_reader_name(name).ok().map(|()| name)
}

/// The key of the list of a consumer's processes.
pub fn members(consumer: &str) -> String {
    format!("shards/0000/consumers/{consumer}/members")
}

/// The consumer whose list of processes has this key. `None` for other objects.
pub fn consumer_of_members(key: &str) -> Option<&str> {
    let name = key.strip_prefix(&consumers(0))?.strip_prefix('/')?;
    let name = name.strip_suffix("/members")?;
    check_reader_name(name).ok().map(|()| name)
}

/// The folder of the snapshots of a consumer's deduplication in a shard.
pub fn uniques(shard: u32, consumer: &str) -> String {
    format!("shards/{shard:04}/consumers/{consumer}/unique")
}

/// The key of a snapshot of a stream's deduplication: the state before the sequence `next`.
pub fn unique(shard: u32, consumer: &str, stream: &str, next: u64, snapshot: Ulid) -> String {
    format!("{}/{stream}-{next:020}-{snapshot}", uniques(shard, consumer))
}

/// The consumer, stream, sequence and name of the snapshot with this key. `None` for other objects.
pub fn parse_unique(shard: u32, key: &str) -> Option<(&str, &str, u64, Ulid)> {
    let (consumer, name) = key
        .strip_prefix(&consumers(shard))?
        .strip_prefix('/')?
        .split_once('/')?;
    let mut words = name.strip_prefix("unique/")?.rsplitn(3, '-');
    let snapshot = Ulid::from_string(words.next()?).ok()?;
    let next = words.next()?.parse().ok()?;
    let stream = words.next()?;
    check_reader_name(consumer).ok()?;
    check_consumer_name(stream).ok()?;
    (unique(shard, consumer, stream, next, snapshot) == key).then_some((consumer, stream, next, snapshot))
}

/// The folder of a shard's consumers.
pub fn consumers(shard: u32) -> String {
    format!("shards/{shard:04}/consumers")
}

/// The folder of a shard's dead letters, or of one consumer's.
pub fn dead_letters(shard: u32, consumer: Option<&str>) -> String {
    let all = format!("shards/{shard:04}/dead-letters");
    consumer.map_or(all.clone(), |consumer| format!("{all}/{consumer}"))
}

/// The folder of a shard's segments.
pub fn segments(shard: u32) -> String {
    format!("shards/{shard:04}/segments")
}

/// An invalid name for a consumer.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "consumer name {0:?} is not allowed: use 1 to {NAME_MAX} of the characters a-z A-Z 0-9 . _ - with a letter or digit first; \
     names that end in {REPAIR} belong to repairs"
)]
pub struct InvalidName(pub String);

/// Maximum characters in a consumer's name.
pub const NAME_MAX: usize = 100;

/// Checks a consumer's name, which becomes part of a key and of every deduplication token. The rule is the same as for
/// stream names.
pub fn check_consumer_name(name: &str) -> Result<(), InvalidName> {
    millpond_segment::check_stream_name(name).map_err(|e| InvalidName(e.0))
}

/// The suffix of a repair cursor's name.
const REPAIR: &str = ".repair";

/// The name of the cursor that repairs a consumer's rows.
pub fn repair(consumer: &str) -> String {
    format!("{consumer}{REPAIR}")
}

/// The consumer whose rows this cursor repairs.
pub fn repaired_by(cursor: &str) -> Option<&str> {
    cursor.strip_suffix(REPAIR)
}

/// Checks the name of a consumer that reads the log itself: names of repairs are reserved.
pub fn check_reader_name(name: &str) -> Result<(), InvalidName> {
    check_consumer_name(name)?;
    if repaired_by(name).is_some() {
        return Err(InvalidName(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_change_a_key_are_refused() {
        for bad in [
            "",
            "../x",
            "a/b",
            ".hidden",
            "a b",
            "é",
            &"x".repeat(NAME_MAX + 1),
        ] {
            assert!(check_consumer_name(bad).is_err(), "{bad:?}");
        }
        for good in ["default", "a", "team-1.replay_2", &"x".repeat(NAME_MAX)] {
            assert!(check_consumer_name(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn names_of_repairs_are_reserved() {
        assert_eq!(repair("default"), "default.repair");
        assert_eq!(repaired_by("default.repair"), Some("default"));
        assert_eq!(repaired_by("repair"), None);
        assert!(check_reader_name("default").is_ok());
        assert!(check_consumer_name("default.repair").is_ok());
        for reserved in ["default.repair", "a.repair.repair"] {
            let error = check_reader_name(reserved).expect_err(reserved).to_string();
            assert!(error.contains("belong to repairs"), "{error}");
        }
        assert!(check_reader_name("../x").is_err());
    }

    #[test]
    fn a_cursors_key_names_its_consumer() {
        assert_eq!(reader_of_cursor(3, &cursor(3, "default")), Some("default"));
        for other in [
            cursor(0, "default"),
            cursor(3, "default.repair"),
            members("default"),
            "shards/0003/consumers/a/b/cursor".to_owned(),
            "shards/0003/consumers/cursor".to_owned(),
        ] {
            assert_eq!(reader_of_cursor(3, &other), None, "{other}");
        }
    }

    #[test]
    fn a_lists_key_names_its_consumer() {
        assert_eq!(consumer_of_members(&members("default")), Some("default"));
        for other in [
            cursor(0, "default"),
            members("default.repair"),
            members("a/b"),
            "shards/0001/consumers/default/members".to_owned(),
            "shards/0000/consumers/members".to_owned(),
        ] {
            assert_eq!(consumer_of_members(&other), None, "{other}");
        }
    }

    #[test]
    fn a_snapshots_key_names_its_stream_and_its_sequence() {
        let name = Ulid::from_parts(5, 0xabc_def0);
        let key = unique(3, "default", "events.a-b", 17, name);
        assert_eq!(parse_unique(3, &key), Some(("default", "events.a-b", 17, name)));
        let tail = key.to_lowercase();
        assert_ne!(tail, key);
        for other in [
            cursor(3, "default"),
            unique(4, "default", "events.a", 17, name),
            unique(3, "default.repair", "events.a", 17, name),
            format!("{key}0"),
            tail,
            key.replace("unique/", "unique/x/"),
            key.replace("-0000", "-"),
        ] {
            assert_eq!(parse_unique(3, &other), None, "{other}");
        }
    }

    #[test]
    fn shards_sort_as_numbers() {
        assert_eq!(manifest(7), "shards/0007/manifest");
        assert_eq!(cursor(0, "default"), "shards/0000/consumers/default/cursor");
    }
}
