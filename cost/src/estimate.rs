//! The estimate: the bill, its largest item, possible savings, and alternatives for the same load.

use crate::activity::{Activity, PerSecond, commits_of_many};
use crate::advice::{Advice, advise};
use crate::comparators::{Comparator, comparators};
use crate::inserts::Writers;
use crate::items::{Basis, Group, bill, total};
use crate::live::{Observed, live};
use crate::prices::age_warning;
use crate::rate::Load;
use crate::settings::{Sharing, bytes};
use crate::{CostError, Latency, MONTH_HOURS, NetworkPath, Prices, RequestLatency, Settings, StoragePrice};
use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

/// The inputs of an estimate.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The incoming load.
    pub load: Load,
    /// The settings of Millpond.
    pub settings: &'a Settings,
    /// The latency of the store.
    pub request: RequestLatency,
    /// The price table.
    pub prices: &'a Prices,
    /// The provider of the store.
    pub provider: &'a str,
    /// The region; `None` means the provider's first one in the table.
    pub region: Option<&'a str>,
    /// The latency target for 99 of 100 records.
    pub target_seconds: Option<f64>,
    /// The date, to determine the age of prices.
    pub today: NaiveDate,
}

/// The largest item of the bill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dominant {
    /// Its group.
    pub group: String,
    /// Its name.
    pub item: String,
    /// Its cost.
    pub usd_per_month: f64,
    /// Its share of the total, 0 to 1.
    pub share: f64,
}

/// CPU of gateways and consumers, not included in the total.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compute {
    /// Average number of busy cores.
    pub vcpus_busy: f64,
    /// At $0.0535 per vCPU-hour and 50 % utilization.
    pub usd_per_month: f64,
    /// Always false.
    pub in_total: bool,
}

/// The monthly cost of a buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Requests, storage and traffic, without CPU.
    pub total_usd_per_month: f64,
    /// Per stored GiB.
    pub usd_per_gib: f64,
    /// Per GiB before compression.
    pub usd_per_gib_raw: f64,
    /// The bill.
    pub items: Vec<Group>,
    /// Its largest item; `None` if the total is zero.
    pub dominant: Option<Dominant>,
    /// Possible savings.
    pub advice: Advice,
    /// Alternatives for the same load.
    pub comparators: Vec<Comparator>,
    /// From acceptance by a gateway to a row, if the writers keep up.
    pub latency: Latency,
    /// The load of a consumer's writers; `None` without consumers.
    pub writers: Option<Writers>,
    /// By billing category.
    pub requests_per_second: PerSecond,
    /// The purposes of the requests.
    pub activity: Activity,
    /// The assumed load.
    pub load: Load,
    /// The assumed settings.
    pub settings: Settings,
    /// The assumed request latency.
    pub request_latency: RequestLatency,
    /// CPU, not included in the total.
    pub compute: Compute,
    /// The prices used.
    pub price: StoragePrice,
    /// Old prices, and settings that work but are unwise.
    pub warnings: Vec<String>,
}

/// CPU-seconds of gateway and consumer per million records of 428 raw bytes (`design/performance.md`, bloom indexes).
const CPU_SECONDS_PER_RAW_BYTE: [f64; 2] = [1.37 / 428e6, 1.66 / 428e6];
pub(crate) const VCPU_USD_PER_HOUR: f64 = 0.0535;
/// Average utilization of the cores.
const BUSY: f64 = 0.5;

/// Everything that depends on the settings alone.
pub(crate) struct Priced {
    pub(crate) activity: Activity,
    pub(crate) latency: Latency,
    pub(crate) items: Vec<Group>,
    pub(crate) total: f64,
}

impl Inputs<'_> {
    /// The prices of the requested store.
    ///
    /// # Errors
    /// The table does not have them.
    pub fn price(&self) -> Result<&StoragePrice, CostError> {
        self.prices.storage(self.provider, self.region)
    }

    /// Prices the same load with other settings.
    pub(crate) fn priced(&self, settings: &Settings) -> Result<Priced, CostError> {
        settings.check(&self.load, self.request)?;
        let activity = Activity::of(&self.load, settings, self.request);
        self.bill(settings, activity, |_| Basis::Predicted)
    }

    fn bill(
        &self,
        settings: &Settings,
        activity: Activity,
        basis: impl Fn(&str) -> Basis,
    ) -> Result<Priced, CostError> {
        let items = bill(&activity, settings, self.price()?, self.prices, basis)?;
        Ok(Priced {
            activity,
            latency: Latency::of(&self.load, settings, self.request),
            total: total(&items),
            items,
        })
    }
}

impl Estimate {
    /// Estimates the cost of a load.
    ///
    /// # Errors
    /// The settings are invalid, or the table lacks a price.
    pub fn of(inputs: &Inputs<'_>) -> Result<Estimate, CostError> {
        let priced = inputs.priced(inputs.settings)?;
        let advice = advise(inputs, priced.total);
        Estimate::finished(inputs, priced, advice)
    }

    /// Estimates the cost of a live buffer if its load continues. The observation replaces the load of `inputs`, and
    /// the number of producers, consumers, shards and streams.
    ///
    /// # Errors
    /// As [`Estimate::of`], or nothing was observed.
    pub fn of_live(inputs: &Inputs<'_>, observed: &Observed) -> Result<Estimate, CostError> {
        let (load, settings, activity) = live(observed, inputs)?;
        let inputs = Inputs {
            load,
            settings: &settings,
            ..*inputs
        };
        let priced = inputs.bill(&settings, activity, |name| observed.basis(name))?;
        let model = inputs.priced(&settings);
        // A knob's saving is the difference between two runs of the model.
        let advice = model.map_or_else(|_| Advice::none(), |model| advise(&inputs, model.total));
        Estimate::finished(&inputs, priced, advice)
    }

    fn finished(inputs: &Inputs<'_>, priced: Priced, advice: Advice) -> Result<Estimate, CostError> {
        let Priced {
            activity,
            latency,
            items,
            total,
        } = priced;
        let Inputs { load, settings, .. } = *inputs;
        let raw = load.raw_bytes_per_second();
        let [gateway, consumer] = CPU_SECONDS_PER_RAW_BYTE;
        let vcpus_busy = raw * (gateway + consumer * f64::from(settings.consumers));
        let price = inputs.price()?;
        let writers = (settings.consumers > 0).then(|| Writers::of(&load, settings));
        Ok(Estimate {
            total_usd_per_month: total,
            usd_per_gib: total / load.gib_per_month(),
            usd_per_gib_raw: total / (load.gib_per_month() * load.ratio),
            dominant: dominant(&items, total),
            advice,
            comparators: comparators(&load, settings),
            latency,
            writers,
            requests_per_second: activity.per_second(),
            activity,
            load,
            settings: settings.clone(),
            request_latency: inputs.request,
            compute: Compute {
                vcpus_busy,
                usd_per_month: vcpus_busy / BUSY * VCPU_USD_PER_HOUR * MONTH_HOURS,
                in_total: false,
            },
            price: price.clone(),
            warnings: warnings(inputs, &activity, price, writers),
            items,
        })
    }
}

fn dominant(items: &[Group], total: f64) -> Option<Dominant> {
    let all = items
        .iter()
        .flat_map(|group| group.items.iter().map(move |item| (group, item)));
    let (group, item) = all.max_by(|(_, a), (_, b)| a.usd_per_month.total_cmp(&b.usd_per_month))?;
    (item.usd_per_month > 0.0).then(|| Dominant {
        group: group.name.clone(),
        item: item.name.clone(),
        usd_per_month: item.usd_per_month,
        share: item.usd_per_month / total,
    })
}

fn warnings(
    inputs: &Inputs<'_>,
    activity: &Activity,
    price: &StoragePrice,
    writers: Option<Writers>,
) -> Vec<String> {
    let Inputs {
        load,
        settings,
        request,
        prices,
        today,
        ..
    } = *inputs;
    let mut warnings = Vec::new();
    let store = format!("{} in {}", price.provider, price.region);
    warnings.extend(age_warning(&store, price.date, today));
    if activity.bytes_across_zones + activity.bytes_to_leaders > 0.0 || settings.path != NetworkPath::Endpoint
    {
        let of_provider = |network: &&crate::NetworkPrice| network.providers.contains(&price.provider);
        let network = prices.network.iter().find(of_provider);
        warnings.extend(
            network.and_then(|n| age_warning(&format!("{}'s network", price.provider), n.date, today)),
        );
    }
    let active = settings.active_shards();
    let wanted = activity.segments / settings.segments_per_commit(&load, request) / active;
    let alone = settings.producers <= settings.shards;
    let most = if alone {
        1.0 / request.put_seconds
    } else {
        commits_of_many(settings.committers(&load).max(2.0), request)
    };
    let each_commits = settings.sharing(&load) == Sharing::Nothing;
    if each_commits && wanted > 0.8 * most {
        let remedy = if alone {
            ""
        } else {
            "--peers (gateways with --peer-listen), "
        };
        warnings.push(format!(
            "{wanted:.1} commits a second are wanted of each shard, whose manifest takes {most:.1} at most: they wait for each other and carry \
             several segments each; give {remedy}more --shards or a longer --linger"
        ));
    }
    if let Some(Writers { needed, .. }) = writers.filter(|writers| !writers.keep_up) {
        warnings.push(format!(
            "the consumer falls behind: {}/s of raw bytes keep {needed} writers busy with INSERTs of {}/s each, and there are {}; the latency is \
             that of a consumer that keeps up. Give --writers {needed}, or measure what one INSERT takes and give --writer-throughput; more \
             writers also need a larger --memory-limit",
            bytes(load.raw_bytes_per_second()),
            bytes(settings.writer_bytes_per_second),
            settings.writers
        ));
    }
    if settings.gc_seconds == 0.0 || settings.consumers == 0 {
        warnings.push("nobody collects garbage (no consumer, or --gc-interval 0s): what is stored grows for ever, and is counted as if it did not".to_owned());
    }
    warnings
}
