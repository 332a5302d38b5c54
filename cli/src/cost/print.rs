//! An estimate and a sweep as text for people.

use crate::units::{grouped, whole};
use millpond_cost::{Basis, Change, Comparator, Estimate, Group, Item, Load, StoragePrice, Sweep};
use millpond_operate::observe::Seen;
use std::fmt::Write as _;

const WIDTH: usize = 40;

/// Writes of a line to a text cannot fail.
macro_rules! line {
    ($out:expr, $($what:tt)*) => {{
        let _ = writeln!($out, $($what)*);
    }};
}

/// `compare`: with the cost of the same load elsewhere.
pub(super) fn estimate(estimate: &Estimate, seen: Option<&Seen>, compare: bool) -> String {
    let mut out = String::new();
    // First, since they qualify every figure below.
    for warning in &estimate.warnings {
        line!(out, "warning: {warning}\n");
    }
    if let Some(Seen {
        url,
        asked_seconds,
        observed,
    }) = seen
    {
        line!(
            out,
            "{url}: of the last {}, {} can be seen",
            time(*asked_seconds),
            time(observed.seconds)
        );
        line!(
            out,
            "counted: {} segments with {}, {} pages, {} kept; producers: {}, consumers: {}",
            number(observed.segments as f64),
            bytes(observed.bytes as f64),
            observed.pages,
            bytes(observed.bytes_kept as f64),
            observed.producers,
            observed.consumers
        );
    }
    line!(out, "{}", load(&estimate.load));
    line!(out, "{}", settings(estimate, seen.is_some()));
    line!(
        out,
        "{}: prices of {}",
        place(&estimate.price),
        dated(&estimate.price)
    );
    line!(
        out,
        "\n{:<WIDTH$} {:>17}  {:<10} {:>12}",
        "",
        "a month",
        "unit",
        "US dollars"
    );
    for group in &estimate.items {
        print_group(&mut out, group);
    }
    line!(
        out,
        "{:<WIDTH$} {:>17}  {:<10} {:>12}",
        "total",
        "",
        "",
        money(estimate.total_usd_per_month)
    );
    if seen.is_some() {
        line!(
            out,
            "~ the model's, from what was counted: no object in the buffer tells it"
        );
    }
    line!(
        out,
        "\n{} a GiB stored, {} a GiB raw",
        fine(estimate.usd_per_gib),
        fine(estimate.usd_per_gib_raw)
    );
    let requests = estimate.requests_per_second;
    line!(
        out,
        "requests a second: {:.2} PUT, {:.2} GET, {:.3} LIST",
        requests.put,
        requests.get,
        requests.list
    );
    // A segment every minute may be one that lingered for a second.
    if seen.is_none() {
        let falls_behind = estimate.writers.is_some_and(|writers| !writers.keep_up);
        line!(
            out,
            "from gateway to row: p50 {}, p99 {} (the model's{})",
            time(estimate.latency.p50_seconds),
            time(estimate.latency.p99_seconds),
            if falls_behind {
                ", if the writers kept up"
            } else {
                ""
            }
        );
    }
    if let Some(writers) = &estimate.writers {
        line!(
            out,
            "writers: {}, {:.0} % busy with INSERTs",
            estimate.settings.writers,
            100.0 * writers.busy
        );
    }
    if let Some(dominant) = &estimate.dominant {
        line!(
            out,
            "largest: {}, {}: {:.0} %",
            dominant.group,
            dominant.item,
            100.0 * dominant.share
        );
    }
    match &estimate.advice.change {
        Some(change) => line!(out, "to cut it most: {}", step(change, seen.is_some())),
        None => line!(out, "to cut it: no single setting saves a hundredth"),
    }
    for change in &estimate.advice.others {
        line!(out, "          also: {}", step(change, seen.is_some()));
    }
    line!(
        out,
        "not in it: CPU of gateways and consumers, {} cores busy: {} a month if half of what is paid for is busy",
        number(estimate.compute.vcpus_busy),
        money(estimate.compute.usd_per_month)
    );
    if compare {
        line!(out, "\nthe same load elsewhere, a month");
        for comparator in &estimate.comparators {
            print_comparator(&mut out, comparator);
        }
    }
    out
}

pub(super) fn load(load: &Load) -> String {
    format!(
        "{}/s stored, {}/s raw ({:.1} : 1), {} GiB stored a month",
        bytes(load.compressed_bytes_per_second),
        bytes(load.raw_bytes_per_second()),
        load.ratio,
        number(load.gib_per_month())
    )
}

pub(super) fn place(price: &StoragePrice) -> String {
    format!("{} in {}", price.provider, price.region)
}

fn dated(price: &StoragePrice) -> String {
    let date = price
        .date
        .map_or_else(|| "an unknown day".to_owned(), |date| date.to_string());
    format!("{date} ({})", price.source)
}

/// The linger of a live buffer is not known: gateways that have nothing make no segments.
fn settings(estimate: &Estimate, live: bool) -> String {
    let s = &estimate.settings;
    let linger = if live { "a segment every" } else { "linger" };
    format!(
        "{linger} {}, segments up to {}; producers {}{}, shards {}, consumers {}, streams {}; polls every {}, acknowledges every {}",
        time(s.linger_seconds),
        bytes(s.segment_bytes),
        s.producers,
        if s.peers { " that share commits" } else { "" },
        s.shards,
        s.consumers,
        s.streams,
        time(s.poll_seconds),
        time(s.ack_seconds)
    )
}

fn print_group(out: &mut String, group: &Group) {
    let shown: Vec<&Item> = group
        .items
        .iter()
        .filter(|item| item.quantity_per_month > 0.0)
        .collect();
    if shown.is_empty() {
        return;
    }
    line!(
        out,
        "{:<WIDTH$} {:>17}  {:<10} {:>12}",
        group.name,
        "",
        "",
        money(group.usd_per_month)
    );
    for (place, item) in shown.iter().enumerate() {
        let branch = if place + 1 == shown.len() {
            "└─"
        } else {
            "├─"
        };
        let about = if item.basis == Basis::Estimated { "~ " } else { "" };
        let quantity = format!("{about}{}", number(item.quantity_per_month));
        let name = format!("{branch} {}", item.name);
        line!(
            out,
            "{name:<WIDTH$} {quantity:>17}  {:<10} {:>12}",
            item.unit,
            money(item.usd_per_month)
        );
    }
}

/// A live buffer does not tell its linger, nor how late its records are.
fn step(change: &Change, live: bool) -> String {
    let what = if live && change.knob == "--linger" {
        "--linger twice as long".to_owned()
    } else {
        format!("{} from {} to {}", change.knob, change.from, change.to)
    };
    let latency = if live {
        String::new()
    } else {
        format!(", p99 {}", time(change.then_latency.p99_seconds))
    };
    format!(
        "{what} saves {} (then {}{latency})",
        money(change.saves_usd_per_month),
        money(change.then_usd_per_month)
    )
}

fn print_comparator(out: &mut String, comparator: &Comparator) {
    line!(
        out,
        "  {:<66} {:>12}",
        comparator.name,
        money(comparator.usd_per_month)
    );
    line!(out, "      {}", comparator.prices);
    for assumption in &comparator.assumptions {
        line!(out, "      {assumption}");
    }
}

pub(super) fn sweep(sweep: &Sweep) -> String {
    let mut out = String::new();
    for axis in &sweep.axes {
        let _ = write!(out, "{:>12}", axis.knob.name());
    }
    line!(
        out,
        "  {:>14} {:>9} {:>9} {:>9} {:>9}",
        "$ a month",
        "p50",
        "p99",
        "PUT/s",
        "GET/s"
    );
    for (place, point) in sweep.points.iter().enumerate() {
        for shown in &point.shown {
            let _ = write!(out, "{shown:>12}");
        }
        match (
            point.usd_per_month,
            point.latency,
            point.puts_per_second,
            point.gets_per_second,
        ) {
            (Some(usd), Some(latency), Some(puts), Some(gets)) => {
                let mark = if sweep.cheapest == Some(place) {
                    "  cheapest"
                } else {
                    ""
                };
                line!(
                    out,
                    "  {:>14} {:>9} {:>9} {puts:>9.2} {gets:>9.2}{mark}",
                    money(usd),
                    time(latency.p50_seconds),
                    time(latency.p99_seconds)
                );
            }
            _ => line!(out, "  refused: {}", point.refused.as_deref().unwrap_or_default()),
        }
    }
    out
}

/// `$1,234.56`.
fn money(usd: f64) -> String {
    let cents = whole(usd * 100.0);
    format!("${}.{:02}", grouped(cents / 100), cents % 100)
}

/// Four digits of something small.
fn fine(usd: f64) -> String {
    if usd >= 1.0 || usd == 0.0 {
        return money(usd);
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a few digits"
    )]
    let places = (3.0 - usd.log10().floor()).clamp(2.0, 12.0) as usize;
    format!("${usd:.places$}")
}

/// `1,234,567`, with decimals when it is small.
fn number(value: f64) -> String {
    if value < 100.0 && value.fract() != 0.0 {
        format!("{value:.2}")
    } else {
        grouped(whole(value))
    }
}

fn bytes(bytes: f64) -> String {
    millpond_cost::readable_bytes(bytes)
}

fn time(seconds: f64) -> String {
    millpond_cost::readable_seconds(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_money_has_cents() {
        assert_eq!(number(1_234_567.4), "1,234,567");
        assert_eq!(number(12.345), "12.35");
        assert_eq!(number(0.0), "0");
        assert_eq!(money(1_234.5), "$1,234.50");
        assert_eq!(money(0.004), "$0.00");
        assert_eq!(fine(0.000_853_21), "$0.0008532");
        assert_eq!(fine(0.0655), "$0.06550");
        assert_eq!(fine(2.5), "$2.50");
    }
}
