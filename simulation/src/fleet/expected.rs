//! What the cost model expects of a fleet, and the prices of what was counted.

use millpond_cost::{
    Activity, GIB, Load, MONTH_SECONDS, Prices, Rate, RequestLatency, Settings, StoragePrice,
};

use super::report::{Dollars, Requests};
use super::{Fleet, Layout, RATIO};

/// The prices of S3 in its first region.
pub(super) struct Priced {
    storage: StoragePrice,
    between_zones_usd_per_gib: f64,
}

impl Priced {
    pub(super) fn new() -> Priced {
        let prices = Prices::built_in();
        let storage = prices.storage("s3", None).expect("the table has S3").clone();
        let network = prices
            .network
            .iter()
            .find(|network| network.providers.iter().any(|it| it == "s3"));
        let between_zones = network.and_then(|network| network.cross_zone_usd_per_gib);
        Priced {
            storage,
            between_zones_usd_per_gib: between_zones.expect("the table has S3's network"),
        }
    }

    /// Dollars a month for these requests and bytes per second. LISTs cost what PUTs do.
    fn dollars(&self, puts: f64, gets: f64, between_zones: f64) -> Dollars {
        let requests = puts * self.storage.put_usd_per_1000 + gets * self.storage.get_usd_per_1000;
        Dollars {
            requests: requests / 1_000.0 * MONTH_SECONDS,
            between_zones: between_zones * MONTH_SECONDS / GIB * self.between_zones_usd_per_gib,
        }
    }

    /// The price of the gateways' requests.
    pub(super) fn of(&self, requests: &Requests) -> Dollars {
        let swaps = requests.commits + requests.other_swaps + requests.swaps_refused;
        let puts = requests.segments + requests.pages + swaps + requests.lists;
        let gets = requests.manifest_reads + requests.other_reads;
        self.dollars(puts, gets, requests.bytes_between_zones)
    }

    /// The price of the requests of one consumer and of garbage collection, by the cost model.
    pub(super) fn of_the_readers(&self, fleet: &Fleet) -> f64 {
        let activity = activity(fleet);
        let all = activity.per_second();
        let puts = activity.segments + activity.commits + activity.swaps_refused + activity.pages;
        self.dollars(all.put + all.list - puts, all.get - activity.commit_reads, 0.0)
            .requests
    }
}

/// The requests of the gateways by the cost model.
pub(super) fn requests(fleet: &Fleet) -> Requests {
    let activity = activity(fleet);
    Requests {
        segments: activity.segments,
        pages: activity.pages,
        commits: activity.commits,
        swaps_refused: activity.swaps_refused,
        manifest_reads: activity.commit_reads,
        bytes_between_zones: activity.bytes_to_leaders,
        ..Requests::default()
    }
}

fn activity(fleet: &Fleet) -> Activity {
    let count = |number: usize| u32::try_from(number).expect("a small number");
    #[expect(
        clippy::cast_precision_loss,
        reason = "bytes per second, and the size of a segment"
    )]
    let (bytes, forward_below) = (
        (fleet.gateways * fleet.load.request_bytes) as f64,
        fleet.forward_below.unwrap_or(0) as f64,
    );
    let each = f64::from(fleet.load.requests_per_second);
    #[expect(clippy::cast_precision_loss, reason = "requests per second")]
    let requests = fleet.gateways as f64 * each;
    let load = Load::compressed(Rate(bytes * each), RATIO).with_requests(requests);
    let zones = match fleet.layout {
        Layout::AnyShard => fleet.zones,
        // No leader is in another zone.
        Layout::ShardsOfTheZone => 1,
    };
    let settings = Settings {
        linger_seconds: fleet.linger.as_secs_f64(),
        producers: count(fleet.gateways),
        peers: fleet.forward_below.is_some(),
        forward_below_bytes: forward_below,
        shards: count(fleet.shards),
        zones: count(zones),
        zone_aware: zones > 1,
        ..Settings::default()
    };
    Activity::of(&load, &settings, RequestLatency::default())
}
