//! Checks each ClickHouse server: its answers, clock, rights and tables.

use super::{Report, SKEW_MAX};
use millpond_clickhouse::tables::{Report as Found, Seen, State, inspect, look as look_at};
use millpond_clickhouse::{ClickHouse, Config, keeps_identities};
use millpond_consumer::{BatchingPolicy, SinkError};
use std::collections::BTreeSet;

const WAITS: &str = "a consumer with these settings waits for the server, creates missing tables, and exits at a table that does not fit";

/// Checks that the tables fit at every address, are the same, and remember tokens for long enough.
pub(super) async fn look(config: Config, policies: &[BatchingPolicy], report: &mut Report) {
    let database = config.database.clone();
    let config = Config {
        create: false,
        ..config
    };
    let mut away = Vec::new();
    let mut fit = true;
    for url in &config.urls {
        let one = Config {
            urls: vec![url.clone()],
            ..config.clone()
        };
        match look_at_address(one, report).await {
            Ok(fits) => fit &= fits,
            Err(SinkError::Transient(reason)) => away.push(reason),
            Err(error) => {
                fit = false;
                report.error(format!("database {database}: {error}"), WAITS);
            }
        }
    }
    let all_away = away.len() == config.urls.len();
    for reason in away {
        let what = format!("database {database}: {reason}");
        if all_away {
            report.error(what, WAITS);
        } else {
            report.warning(
                what,
                "a consumer uses the other addresses; start this server, or remove its address",
            );
        }
    }
    if !fit || all_away {
        return;
    }
    let sink = match ClickHouse::open(config).await {
        Ok(sink) => sink,
        Err(error) => return report.error(format!("database {database}: {error}"), WAITS),
    };
    report.ok(format!("the tables in database {database} fit"));
    look_at_tokens(&sink, policies, report);
}

/// Returns true if the tables at an address fit.
async fn look_at_address(config: Config, report: &mut Report) -> Result<bool, SinkError> {
    let mut fit = true;
    // The policies in force, not the default ones, decide whether a window is large enough.
    for Found {
        what,
        needed,
        state,
        window: _,
    } in inspect(config.clone()).await?
    {
        match state {
            State::Created | State::Fits => {}
            State::Missing if !needed => report.warning(
                format!("there is no {what}, which lookups of a trace's time need"),
                "`millpond tables create` creates it, without the rows that the traces' table already has",
            ),
            State::Missing => {
                fit = false;
                report.error(
                    format!("there is no {what}"),
                    "a consumer creates it (except with --no-create); `millpond tables create` does so now",
                );
            }
            State::Unfit(faults) => {
                fit = false;
                for fault in faults {
                    report.error(fault.what, fault.remedy);
                }
            }
        }
    }
    if fit {
        report_server(look_at(config).await?, report);
    }
    Ok(fit)
}

fn report_server(seen: Seen, report: &mut Report) {
    let Seen {
        url,
        version: (major, minor),
        clock_ms,
        uncertain,
    } = seen;
    report.ok(format!("ClickHouse {major}.{minor} answers at {url}"));
    if u128::from(clock_ms.unsigned_abs()) > SKEW_MAX.as_millis() {
        report.warning(
            format!(
                "this machine's clock and that of ClickHouse at {url} are {} s apart",
                clock_ms.abs() / 1_000
            ),
            "no data is lost, but TTLs and latency figures are off by this much: synchronise the clocks with NTP",
        );
    }
    for reason in uncertain {
        report.warning(
            reason,
            "grant SYSTEM SYNC REPLICA, or name the cluster (--cluster): otherwise tokens alone protect a retry from duplicates",
        );
    }
}

fn look_at_tokens(sink: &ClickHouse, policies: &[BatchingPolicy], report: &mut Report) {
    if policies.iter().any(|policy| !keeps_identities(&policy.sink)) {
        report.warning(
            "a consumer writes with --columns none: each row is inserted exactly once only while ClickHouse remembers its token",
            "use --columns all for new tables, or keep the deduplication window large; rows without identities can be neither compared nor repaired",
        );
    }
    let warnings: BTreeSet<String> = policies
        .iter()
        .flat_map(|policy| sink.window_warnings(policy))
        .collect();
    for warning in warnings {
        report.warning(
            warning,
            "with Millpond's columns, the consumer also asks the table for the rows of a batch in doubt, and does not depend on the window alone",
        );
    }
}
