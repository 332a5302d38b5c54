//! The settings of requests: those from the URL, and those that no URL, user or profile may change.

use crate::answer::AnswerError;
use crate::client::{Client, Error};
use crate::config::{Config, SkipIndexes};
use crate::failure::{classify, is_exception, shown};
use crate::schema::literal;
use millpond_consumer::SinkError;
use percent_encoding::percent_decode_str;

/// One INSERT is one block under one token (`design/clickhouse-sink.md` has the reason for each setting).
const INSERT: [(&str, &str); 11] = [
    ("async_insert", "0"),
    ("insert_deduplicate", "1"),
    ("insert_distributed_sync", "1"),
    ("deduplicate_blocks_in_dependent_materialized_views", "1"),
    ("max_insert_block_size", "1048449"),
    ("min_insert_block_size_rows", "0"),
    ("min_insert_block_size_bytes", "0"),
    ("max_insert_threads", "1"),
    ("max_partitions_per_insert_block", "0"),
    ("timeout_overflow_mode", "throw"),
    ("wait_end_of_query", "1"),
];

/// Further INSERT settings, which some versions do not know.
const INSERT_WHERE_KNOWN: [(&str, &str); 4] = [
    ("deduplicate_insert", "enable"),
    ("use_strict_insert_block_limits", "0"),
    ("max_insert_block_size_bytes", "0"),
    ("timeout_before_checking_execution_speed", "0"),
];

/// Leaves the indexes of new rows to the first merge.
const INDEXES_BY_MERGE: (&str, &str) = ("materialize_skip_indexes_on_insert", "0");

/// Settings that keep answers complete: the sink would resend a row that a query misses.
const QUESTION_WHERE_KNOWN: [(&str, &str); 18] = [
    ("limit", "0"),
    ("offset", "0"),
    ("final", "0"),
    ("additional_table_filters", "{}"),
    ("additional_result_filter", ""),
    ("use_query_cache", "0"),
    ("use_query_condition_cache", "0"),
    ("enable_parallel_replicas", "0"),
    ("allow_experimental_parallel_reading_from_replicas", "0"),
    ("max_parallel_replicas", "1"),
    ("skip_unavailable_shards", "0"),
    ("optimize_skip_unused_shards", "0"),
    ("distributed_group_by_no_merge", "0"),
    ("apply_deleted_mask", "1"),
    ("force_index_by_date", "0"),
    ("force_primary_key", "0"),
    ("wait_end_of_query", "1"),
    ("http_write_exception_in_output_format", "0"),
];

/// Limits of a query have modes that truncate the answer instead of failing.
const OVERFLOW_MODE: &str = "%overflow_mode%";

/// Parameters that differ between requests, and secrets.
const NOT_IN_URL: [&str; 9] = [
    "user",
    "password",
    "query",
    "query_id",
    "session_id",
    "session_check",
    "default_format",
    "compress",
    "decompress",
];

/// A parsed URL.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    url: String,
    settings: Vec<(String, String)>,
}

/// The clients of a server.
pub(crate) struct Clients {
    /// For everything but INSERTs of chunks.
    pub(crate) asking: Client,
    /// For INSERTs of chunks, whose bodies are already compressed.
    pub(crate) inserting: Client,
}

/// Makes a client that carries the parameters of the URL in every request. Sends nothing. Also returns the URL without parameters.
pub(crate) fn client(config: &Config, url: &str) -> Result<(String, Client), SinkError> {
    let Address { url, settings } = take_apart(url)?;
    let at_server = |error| classify(&format!("connecting to {url}"), &error);
    let client = Client::new(config, &url).map_err(at_server)?;
    let client = settings
        .into_iter()
        .fold(client, |client, (name, value)| client.with_setting(name, value));
    Ok((url, client))
}

/// Makes the clients of the server at `url`, and asks it which settings it knows. Also returns the URL without parameters.
pub(crate) async fn connect(config: &Config, url: &str) -> Result<(String, Clients), SinkError> {
    let (url, client) = client(config, url)?;
    let known = known(&client, &url).await?;
    let is_known =
        |(name, _): &(&str, &str)| *name == "wait_end_of_query" || known.iter().any(|known| known == name);
    let question = QUESTION_WHERE_KNOWN.into_iter().filter(is_known);
    let modes = known.iter().filter(|name| name.contains("overflow_mode"));
    let question = question.chain(modes.map(|name| (name.as_str(), "throw")));
    let by_merge = indexes_by_merge(config.skip_indexes, &known, &url)?;
    let insert = INSERT
        .into_iter()
        .chain(INSERT_WHERE_KNOWN.into_iter().filter(is_known))
        .chain(by_merge);
    let with = |client: Client, pinned: &mut dyn Iterator<Item = (&str, &str)>| {
        pinned.fold(client, |client, (name, value)| client.with_setting(name, value))
    };
    let inserting = with(client.clone(), &mut { insert })
        .with_setting("max_execution_time", config.timeout_seconds.to_string())
        .with_setting("decompress", "1");
    let asking = with(client, &mut { question });
    Ok((url, Clients { asking, inserting }))
}

fn indexes_by_merge(
    skip_indexes: SkipIndexes,
    known: &[String],
    url: &str,
) -> Result<Option<(&'static str, &'static str)>, SinkError> {
    let (name, _) = INDEXES_BY_MERGE;
    match skip_indexes {
        SkipIndexes::Insert => Ok(None),
        SkipIndexes::Merge if known.iter().any(|known| known == name) => Ok(Some(INDEXES_BY_MERGE)),
        SkipIndexes::Merge => Err(SinkError::Schema(format!(
            "{url} cannot leave indexes to merges: it does not know the setting {name}; use --skip-indexes insert"
        ))),
    }
}

/// Profile settings that could hide the answer to the first query.
const FIRST_QUESTION: [(&str, &str); 4] = [
    ("limit", "0"),
    ("offset", "0"),
    ("additional_result_filter", ""),
    ("use_query_cache", "0"),
];

const UNKNOWN_SETTING: u32 = 115;

/// Asks which of the settings above the server knows.
async fn known(client: &Client, url: &str) -> Result<Vec<String>, SinkError> {
    let ours = INSERT_WHERE_KNOWN.iter().chain(&QUESTION_WHERE_KNOWN);
    let ours = ours.chain([&INDEXES_BY_MERGE]);
    let names: Vec<String> = ours.map(|(name, _)| literal(name)).collect();
    let sql = format!(
        "SELECT name FROM system.settings WHERE name IN ({}) OR name LIKE {}",
        names.join(", "),
        literal(OVERFLOW_MODE)
    );
    let ask = async |pinned: &[(&str, &str)]| {
        let client = pinned.iter().fold(client.clone(), |client, (name, value)| {
            client.with_setting(*name, *value)
        });
        client.values::<String>(&sql).await
    };
    let answer = match ask(&FIRST_QUESTION).await {
        Err(error) if is_exception(&error, UNKNOWN_SETTING) => ask(&[]).await,
        answer => answer,
    };
    answer.map_err(|error| match is_another_service(&error) {
        true => SinkError::Schema(format!(
            "{url} is not ClickHouse's HTTP interface ({}): give its address, such as http://127.0.0.1:8123; port 9000 is for the \
             native protocol",
            excerpt(&shown(&error))
        )),
        false => classify(&format!("asking for the settings at {url}"), &error),
    })
}

/// Reports whether something else answered the first question. Only ClickHouse marks its exceptions; a proxy whose server is away
/// answers with 5xx, and one that limits requests with 408, 425 or 429.
fn is_another_service(error: &Error) -> bool {
    match error {
        Error::Status { status, .. } => (200..500).contains(status) && ![408, 425, 429].contains(status),
        Error::NotHttp | Error::Answer(AnswerError::Unreadable(_)) => true,
        _ => false,
    }
}

/// The beginning of a foreign answer, on one line.
fn excerpt(text: &str) -> String {
    let line: Vec<&str> = text.split_whitespace().collect();
    let line = line.join(" ");
    match line.char_indices().nth(120) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

/// Splits a URL. Rejects URLs that the client would report in a confusing way, or log.
fn take_apart(url: &str) -> Result<Address, SinkError> {
    let schema = |text: &str| Err(SinkError::Schema(text.to_owned()));
    let (base, parameters) = url.split_once('?').unwrap_or((url, ""));
    let host = base
        .strip_prefix("http://")
        .or_else(|| base.strip_prefix("https://"))
        .and_then(|rest| rest.split('/').next());
    match host {
        None | Some("") => {
            return Err(SinkError::Schema(format!(
                "{base:?} is not the URL of a ClickHouse server: give its HTTP interface, such as http://127.0.0.1:8123"
            )));
        }
        Some(host) if host.contains('@') => {
            return schema("the URL of ClickHouse contains a user: set user and password separately");
        }
        Some(_) => {}
    }
    let parameters = parameters.split('#').next().unwrap_or_default();
    let mut settings = Vec::new();
    for pair in parameters.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decoded(name);
        if NOT_IN_URL.contains(&name.as_str()) {
            return Err(SinkError::Schema(format!(
                "the URL of ClickHouse has the parameter {name}, which cannot be the same in every request"
            )));
        }
        settings.push((name, decoded(value)));
    }
    Ok(Address {
        url: base.to_owned(),
        settings,
    })
}

fn decoded(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_left_to_merges_where_the_server_can() {
        let old = ["limit".to_owned()];
        let new = [INDEXES_BY_MERGE.0.to_owned()];
        let asked = |skip_indexes, known| indexes_by_merge(skip_indexes, known, "http://x");
        assert!(matches!(asked(SkipIndexes::Insert, &new), Ok(None)));
        assert!(matches!(
            asked(SkipIndexes::Merge, &new),
            Ok(Some(INDEXES_BY_MERGE))
        ));
        let error = asked(SkipIndexes::Merge, &old).unwrap_err().to_string();
        assert!(error.contains("use --skip-indexes insert"), "{error}");
    }

    #[test]
    fn parameters_of_a_url_are_settings() {
        let Address { url, settings } =
            take_apart("http://ch:8123/path?max_threads=4&log_comment=a+b%26c&&role=x").unwrap();
        assert_eq!(url, "http://ch:8123/path");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            settings,
            [
                pair("max_threads", "4"),
                pair("log_comment", "a b&c"),
                pair("role", "x")
            ]
        );
    }

    #[test]
    fn a_url_cannot_hold_a_secret_or_a_query() {
        for name in NOT_IN_URL {
            let error = take_apart(&format!("http://ch:8123/?{name}=secret")).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert!(!error.to_string().contains("=secret"), "{error}");
        }
    }
}
