//! The cost of alternatives for the same load, by their public prices, with all assumptions. All in us-east-1.

use crate::estimate::VCPU_USD_PER_HOUR;
use crate::rate::Load;
use crate::settings::time;
use crate::{GIB, MIB, MONTH_HOURS, MONTH_SECONDS, Settings};
use serde::{Deserialize, Serialize};

/// One alternative for the same load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparator {
    /// The product, and how it is run.
    pub name: String,
    /// Its cost.
    pub usd_per_month: f64,
    /// The source and date of its prices.
    pub prices: String,
    /// All assumptions.
    pub assumptions: Vec<String>,
}

/// Published request rates at a given load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PublishedRates {
    /// Compressed bytes a second.
    pub bytes_per_second: f64,
    /// PUTs a second.
    pub puts: f64,
    /// GETs a second.
    pub gets: f64,
    /// Storage in dollars per month.
    pub storage_usd_per_month: f64,
}

/// OpenData Buffer's rates, for which it claims about $180 per month.
pub const OPENDATA_PUBLISHED: PublishedRates = PublishedRates {
    bytes_per_second: 137.5e6,
    puts: 12.5,
    gets: 16.0,
    storage_usd_per_month: 2.65,
};

/// S3 in us-east-1, as for all alternatives.
const PUT_USD: f64 = 0.005 / 1_000.0;
const GET_USD: f64 = 0.0004 / 1_000.0;
const S3_GIB_MONTH: f64 = 0.023;
const ACROSS_ZONES_GIB: f64 = 0.02;
const GP3_GIB_MONTH: f64 = 0.08;

/// Minimum retention of brokers: the disk space for a day of database downtime is there every day.
const BROKER_RETENTION_MIN: f64 = 86_400.0;

impl PublishedRates {
    /// The monthly cost of these rates on S3 in us-east-1.
    pub fn usd_per_month(&self) -> f64 {
        (self.puts * PUT_USD + self.gets * GET_USD) * MONTH_SECONDS + self.storage_usd_per_month
    }
}

/// All alternatives for a load.
pub fn comparators(load: &Load, settings: &Settings) -> Vec<Comparator> {
    let retention = settings.retention_seconds.max(BROKER_RETENTION_MIN);
    let kafka = |tiered, follower| kafka(load, settings, retention, tiered, follower);
    vec![
        opendata(load, settings),
        kafka(true, true),
        kafka(false, true),
        kafka(true, false),
        msk_express(load, retention),
        warpstream(load),
        kinesis_provisioned(load, settings),
        kinesis_on_demand(load),
    ]
}

fn opendata(load: &Load, settings: &Settings) -> Comparator {
    let published = OPENDATA_PUBLISHED;
    // Data objects per second: of the published load at its assumed settings, and of this load at its own.
    let objects = |load: &Load, settings: &Settings| {
        let rate = load.compressed_bytes_per_second;
        (f64::from(settings.producers) / settings.linger_seconds).max(rate / settings.segment_bytes)
    };
    let theirs = Load {
        compressed_bytes_per_second: published.bytes_per_second,
        ..*load
    };
    let scale = objects(load, settings) / objects(&theirs, &Settings::default());
    let bytes = load.compressed_bytes_per_second / published.bytes_per_second;
    let scaled = PublishedRates {
        bytes_per_second: load.compressed_bytes_per_second,
        puts: published.puts * scale,
        gets: published.gets * scale * f64::from(settings.consumers),
        storage_usd_per_month: published.storage_usd_per_month * bytes,
    };
    Comparator {
        name: "OpenData Buffer".to_owned(),
        usd_per_month: scaled.usd_per_month(),
        prices: "S3 us-east-1, price list of 2025-10-28".to_owned(),
        assumptions: vec![
            "the request rates that it published for 1.1 Gbps (12.5 PUT and 16 GET a second, $2.65 of storage), scaled with the objects that this load and these settings make".to_owned(),
            "the published rates are taken to be for one producer, a linger of 1 s and segments of 16 MiB: it does not say".to_owned(),
            "its nodes are not in it".to_owned(),
        ],
    }
}

fn kafka(load: &Load, settings: &Settings, retention: f64, tiered: bool, follower: bool) -> Comparator {
    const REPLICAS: f64 = 3.0;
    const DISK_FILL: f64 = 0.5;
    /// Three brokers with four cores each.
    const VCPUS_STEP: f64 = 12.0;
    const LOCAL_SECONDS: f64 = 3_600.0;
    let mib = load.compressed_bytes_per_second / MIB;
    let fanout = f64::from(settings.consumers);
    let read_across = if follower { 0.0 } else { fanout * 2.0 / 3.0 };
    let network = ACROSS_ZONES_GIB * load.gib_per_month() * (2.0 / 3.0 + (REPLICAS - 1.0) + read_across);
    let vcpus = (mib / 5.0).max(mib * fanout / 15.0).max(VCPUS_STEP);
    let vcpus = (vcpus / VCPUS_STEP).ceil() * VCPUS_STEP;
    let cpu = vcpus * VCPU_USD_PER_HOUR * MONTH_HOURS;
    let gib = |seconds: f64| load.compressed_bytes_per_second * seconds / GIB;
    let on_disk = if tiered {
        LOCAL_SECONDS.min(retention)
    } else {
        retention
    };
    let disk = gib(on_disk) * REPLICAS / DISK_FILL * GP3_GIB_MONTH;
    let remote = if tiered {
        gib(retention) * S3_GIB_MONTH
    } else {
        0.0
    };
    let name = match (tiered, follower) {
        (true, true) => "Kafka, self-managed: tiered, fetch from followers",
        (false, true) => "Kafka, self-managed: disks only, fetch from followers",
        (true, false) => "Kafka, self-managed: tiered, fetch from leaders",
        (false, false) => "Kafka, self-managed: disks only, fetch from leaders",
    };
    let kept = if tiered {
        format!("{} kept: the last hour on gp3, all of it in S3", time(retention))
    } else {
        format!("{} kept on gp3", time(retention))
    };
    Comparator {
        name: name.to_owned(),
        usd_per_month: network + cpu + disk + remote,
        prices: "EC2, EBS and traffic across zones in us-east-1, 2026-05".to_owned(),
        assumptions: vec![
            format!(
                "three zones, replication 3; across zones: two thirds of what is produced, both replicas{}: ${network:.0}",
                if follower {
                    ""
                } else {
                    ", two thirds of what is read"
                }
            ),
            format!(
                "a core for each 5 MiB/s in or 15 MiB/s out, whole sets of three brokers with four cores: {vcpus:.0} cores at ${VCPU_USD_PER_HOUR} an hour: ${cpu:.0}"
            ),
            format!("{kept}, disks half full: ${:.0}", disk + remote),
            "clients compress as Millpond does; who runs it is not in it".to_owned(),
        ],
    }
}

fn msk_express(load: &Load, retention: f64) -> Comparator {
    /// express.m7g.2xlarge.
    const BROKER_USD_PER_HOUR: f64 = 1.632;
    const BROKER_BYTES: f64 = 62.5e6;
    const IN_GIB: f64 = 0.01;
    const GIB_MONTH: f64 = 0.10;
    let brokers = (load.compressed_bytes_per_second / BROKER_BYTES).ceil().max(3.0);
    let gib = load.gib_per_month();
    let kept = load.compressed_bytes_per_second * retention / GIB;
    let usd = brokers * BROKER_USD_PER_HOUR * MONTH_HOURS
        + gib * IN_GIB
        + kept * GIB_MONTH
        + 2.0 / 3.0 * ACROSS_ZONES_GIB * gib;
    Comparator {
        name: "MSK Express".to_owned(),
        usd_per_month: usd,
        prices: "AWS's MSK prices, us-east-1, 2026-06-23".to_owned(),
        assumptions: vec![
            format!(
                "{brokers:.0} brokers express.m7g.2xlarge at ${BROKER_USD_PER_HOUR} an hour, 62.5 MB/s in each, three at least (smaller ones are not priced)"
            ),
            format!(
                "${IN_GIB} a GiB in, ${GIB_MONTH:.2} a GiB-month, {} kept",
                time(retention)
            ),
            "two thirds of what is produced crosses zones; consumers fetch from their own".to_owned(),
        ],
    }
}

fn warpstream(load: &Load) -> Comparator {
    const CLUSTER: f64 = 503.70;
    let raw_gib = load.gib_per_month() * load.ratio;
    let tiers = [
        (50.0 * 1_024.0, 0.01),
        (250.0 * 1_024.0, 0.0075),
        (f64::INFINITY, 0.0055),
    ];
    let (mut left, mut written) = (raw_gib, 0.0);
    for (size, usd) in tiers {
        let part = f64::min(left, size);
        written += part * usd;
        left -= part;
    }
    Comparator {
        name: "WarpStream, Fundamentals".to_owned(),
        usd_per_month: CLUSTER + written,
        prices: "a transcription of its price page, 2026-10".to_owned(),
        assumptions: vec![
            format!(
                "a cluster ${CLUSTER:.2}; raw GiB written $0.01 up to 50 TiB, $0.0075 for the next 250 TiB, $0.0055 above: {raw_gib:.0} GiB (ratio {:.1})",
                load.ratio
            ),
            "the price above 300 TiB follows from its published total and is not on that page".to_owned(),
            "its agents and their S3 requests are not in it".to_owned(),
        ],
    }
}

/// Bytes per second of a shard, and of a PUT unit, as Kinesis defines them.
const SHARD_BYTES: f64 = 1e6;
const PUT_UNIT_BYTES: f64 = 25e3;

fn kinesis_provisioned(load: &Load, settings: &Settings) -> Comparator {
    const SHARD_USD_PER_HOUR: f64 = 0.015;
    const UNIT_USD: f64 = 0.014 / 1e6;
    let rate = load.compressed_bytes_per_second;
    let shards = (rate / SHARD_BYTES).ceil();
    let units = rate / PUT_UNIT_BYTES * MONTH_SECONDS;
    let mut assumptions = vec![
        format!(
            "{shards:.0} shards of 1 MB/s at ${SHARD_USD_PER_HOUR} an hour, never more than that at any moment"
        ),
        "records aggregated to whole units of 25 KB at $0.014 a million; 24 h kept".to_owned(),
    ];
    if settings.consumers > 2 {
        assumptions.push("more than two consumers need enhanced fan-out, which is not in it".to_owned());
    }
    Comparator {
        name: "Kinesis, provisioned".to_owned(),
        usd_per_month: shards * SHARD_USD_PER_HOUR * MONTH_HOURS + units * UNIT_USD,
        prices: "AWS's Kinesis prices, us-east-1, 2026".to_owned(),
        assumptions,
    }
}

fn kinesis_on_demand(load: &Load) -> Comparator {
    const IN_GIB: f64 = 0.08;
    Comparator {
        name: "Kinesis, on demand".to_owned(),
        usd_per_month: load.gib_per_month() * IN_GIB,
        prices: "AWS's Kinesis prices, us-east-1, 2026".to_owned(),
        assumptions: vec![format!(
            "${IN_GIB} a GiB in; what is read and the stream's hours are not in it; 24 h kept"
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    fn usd(ratio: f64, change: impl Fn(&mut Settings)) -> Vec<(String, f64)> {
        let mut settings = Settings::default();
        change(&mut settings);
        let load = Load::compressed(Rate(137.5e6), ratio);
        comparators(&load, &settings)
            .into_iter()
            .map(|c| (c.name, c.usd_per_month))
            .collect()
    }

    fn is(all: &[(String, f64)], name: &str, expected: f64, within: f64) {
        let (_, found) = all.iter().find(|(n, _)| n == name).unwrap();
        assert!(
            (found / expected - 1.0).abs() < within,
            "{name}: {found} and not {expected}"
        );
    }

    #[test]
    fn the_published_180_dollars_follow_from_the_published_request_rates() {
        let usd = OPENDATA_PUBLISHED.usd_per_month();
        // In a month of 30 days it is 181.1; with 730 hours
        assert!((usd - 183.72).abs() < 0.01, "{usd}");
        assert!((usd * 720.0 / 730.0 - 180.0).abs() < 2.0, "{usd}");
    }

    #[test]
    fn known_totals_at_1_1_gbps() {
        let day = usd(4.0, |_| ());
        is(&day, "OpenData Buffer", 183.72, 0.001);
        // AKalculator publishes $24,667.
        is(
            &day,
            "Kafka, self-managed: disks only, fetch from followers",
            24_667.0,
            0.001,
        );
        // WarpStream publishes $8,867 for it.
        is(&day, "WarpStream, Fundamentals", 8_650.0, 0.001);
        is(&day, "MSK Express", 12_533.0, 0.001);
        is(&day, "Kinesis, provisioned", 1_713.5, 0.001);
        let week = usd(4.0, |s| s.retention_seconds = 7.0 * 86_400.0);
        is(
            &week,
            "Kafka, self-managed: disks only, fetch from followers",
            56_533.0,
            0.001,
        );
        let fanout = usd(4.0, |s| {
            s.retention_seconds = 7.0 * 86_400.0;
            s.consumers = 3;
        });
        is(
            &fanout,
            "Kafka, self-managed: tiered, fetch from leaders",
            34_818.0,
            0.001,
        );
    }
}
