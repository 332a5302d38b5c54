//! The price table: parsed from TOML, merged over the built-in one, and queried by provider and region.

use crate::CostError;
use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

/// Prices older than this many days cause a warning.
const OLD_DAYS: i64 = 90;

const BUILT_IN: &str = include_str!("../prices.toml");

/// The prices of an object store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoragePrice {
    /// For example `s3` or `gcs`.
    pub provider: String,
    /// For example `us-east-1`.
    pub region: String,
    /// Per 1,000 PUTs or LISTs.
    pub put_usd_per_1000: f64,
    /// Per 1,000 GETs or HEADs.
    pub get_usd_per_1000: f64,
    /// Per GiB stored for a month.
    pub storage_usd_per_gib_month: f64,
    /// Per GiB written.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub upload_usd_per_gib: f64,
    /// Per GiB read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub download_usd_per_gib: f64,
    /// Fixed monthly cost: nodes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fixed_usd_per_month: f64,
    /// Duration of a PUT in milliseconds, if it differs from S3 Standard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_latency_ms: Option<f64>,
    /// Duration of a GET in milliseconds, if it differs from S3 Standard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub get_latency_ms: Option<f64>,
    /// Date of the price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<NaiveDate>,
    /// Source of the price.
    pub source: String,
}

/// A cloud's prices for traffic. Unknown prices are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPrice {
    /// The providers whose stores are in that cloud.
    pub providers: Vec<String>,
    /// Per GiB between zones, both directions together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_zone_usd_per_gib: Option<f64>,
    /// Per hour of a NAT gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat_usd_per_hour: Option<f64>,
    /// Per GiB through a NAT gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat_usd_per_gib: Option<f64>,
    /// Per GiB to the internet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_usd_per_gib: Option<f64>,
    /// Date of the price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<NaiveDate>,
    /// Source of the price.
    pub source: String,
}

fn is_zero(price: &f64) -> bool {
    *price == 0.0
}

/// All prices. The first of several network entries for the same provider wins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Prices of stores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub storage: Vec<StoragePrice>,
    /// Prices of networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<NetworkPrice>,
}

impl Prices {
    /// The built-in table.
    ///
    /// # Panics
    /// Never: a test parses it.
    pub fn built_in() -> Prices {
        Prices::parse(BUILT_IN).expect("the built-in table is well-formed")
    }

    /// Parses a table in TOML.
    ///
    /// # Errors
    /// The text is invalid, with the position, or a price is negative.
    pub fn parse(text: &str) -> Result<Prices, CostError> {
        let prices: Prices = toml::from_str(text).map_err(|error| CostError::Prices(error.to_string()))?;
        for entry in &prices.storage {
            let all = [
                entry.put_usd_per_1000,
                entry.get_usd_per_1000,
                entry.storage_usd_per_gib_month,
                entry.upload_usd_per_gib,
                entry.download_usd_per_gib,
                entry.fixed_usd_per_month,
            ];
            let latencies = [entry.put_latency_ms, entry.get_latency_ms];
            if !all.iter().all(|price| price.is_finite() && *price >= 0.0)
                || !latencies.iter().flatten().all(|ms| ms.is_finite() && *ms > 0.0)
            {
                let StoragePrice { provider, region, .. } = entry;
                return Err(CostError::Prices(format!(
                    "storage of {provider} in {region}: a price is a number of 0 or more, a latency one of more than 0"
                )));
            }
        }
        for entry in &prices.network {
            let all = [
                entry.cross_zone_usd_per_gib,
                entry.nat_usd_per_hour,
                entry.nat_usd_per_gib,
                entry.egress_usd_per_gib,
            ];
            if !all
                .iter()
                .flatten()
                .all(|price| price.is_finite() && *price >= 0.0)
            {
                return Err(CostError::Prices(format!(
                    "network of {}: a price is a number of 0 or more",
                    entry.providers.join(", ")
                )));
            }
        }
        Ok(prices)
    }

    /// The table as TOML for [`Prices::parse`].
    ///
    /// # Panics
    /// Never: every field has a TOML form.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every field has a form in TOML")
    }

    /// Merges this table over another: entries in both keep the other's position and take this table's values.
    #[must_use]
    pub fn over(self, below: Prices) -> Prices {
        let Prices { storage, network } = self;
        let mut all = below;
        for entry in storage {
            let same = |other: &&mut StoragePrice| {
                (&other.provider, &other.region) == (&entry.provider, &entry.region)
            };
            match all.storage.iter_mut().find(same) {
                Some(place) => *place = entry,
                None => all.storage.push(entry),
            }
        }
        all.network = [network, all.network].concat();
        all
    }

    /// The prices of a store, by default in the provider's first region.
    ///
    /// # Errors
    /// The table does not have it. The error lists all names and the nearest one.
    pub fn storage(&self, provider: &str, region: Option<&str>) -> Result<&StoragePrice, CostError> {
        let of_provider = || self.storage.iter().filter(|entry| entry.provider == provider);
        let Some(first) = of_provider().next() else {
            let names = self.storage.iter().map(|entry| entry.provider.as_str());
            let (near, known) = named(provider, names);
            let wanted = provider.to_owned();
            return Err(CostError::Provider { wanted, near, known });
        };
        let Some(region) = region else { return Ok(first) };
        of_provider().find(|entry| entry.region == region).ok_or_else(|| {
            let (near, known) = named(region, of_provider().map(|entry| entry.region.as_str()));
            CostError::Region {
                provider: provider.to_owned(),
                wanted: region.to_owned(),
                near,
                known,
            }
        })
    }

    /// One traffic price of a provider's cloud, and its entry.
    ///
    /// # Errors
    /// No entry has it.
    pub(crate) fn network(
        &self,
        provider: &str,
        what: &'static str,
        price: impl Fn(&NetworkPrice) -> Option<f64>,
    ) -> Result<(f64, &NetworkPrice), CostError> {
        let of_provider = self
            .network
            .iter()
            .filter(|entry| entry.providers.iter().any(|p| p == provider));
        let mut found = of_provider.filter_map(|entry| Some((price(entry)?, entry)));
        found.next().ok_or_else(|| CostError::Network {
            provider: provider.to_owned(),
            what,
        })
    }
}

/// The nearest name, if it is close, and all names.
fn named<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> (Option<String>, String) {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    let likeness = |name: &str| strsim::jaro_winkler(name, wanted);
    let nearest = all.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let near = nearest
        .filter(|name| likeness(name) > 0.5)
        .map(|name| (*name).to_owned());
    (near, all.join(", "))
}

/// A warning about the age of a price, if it needs one.
pub(crate) fn age_warning(what: &str, date: Option<NaiveDate>, today: NaiveDate) -> Option<String> {
    let remedy = "check them, and give new ones with --prices (`millpond cost prices import` reads a saved AWS offer file)";
    let Some(date) = date else {
        return Some(format!("the prices of {what} have no date: {remedy}"));
    };
    let days = (today - date).num_days();
    (days > OLD_DAYS).then(|| format!("the prices of {what} are of {date}, {days} days ago: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> NaiveDate {
        text.parse().unwrap()
    }

    #[test]
    fn the_built_in_table_can_be_written_and_read_again() {
        let prices = Prices::built_in();
        assert!(prices.storage.len() >= 11);
        assert_eq!(Prices::parse(&prices.to_toml()), Ok(prices));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let prices = Prices::built_in();
        let error = |provider, region| prices.storage(provider, region).unwrap_err().to_string();
        assert!(error("gsc", None).contains("did you mean gcs?"));
        let region = error("s3", Some("us-est-1"));
        assert!(
            region.contains("did you mean us-east-1?") && region.contains("eu-central-1"),
            "{region}"
        );
        assert!(region.contains("prices import"));
        assert!(!error("qqqq", None).contains("did you mean"));
        assert_eq!(prices.storage("gcs", None).unwrap().region, "us-east1");
        let network = prices.network("gcs", "price of traffic between zones", |n| {
            n.cross_zone_usd_per_gib
        });
        assert!(network.unwrap_err().to_string().contains("[[network]]"));
    }

    #[test]
    fn a_file_goes_before_the_built_in_table() {
        let file = "[[storage]]\nprovider = \"s3\"\nregion = \"us-east-1\"\nput_usd_per_1000 = 1\nget_usd_per_1000 = 1\n\
                    storage_usd_per_gib_month = 1\nsource = \"ours\"\n";
        let prices = Prices::parse(file).unwrap().over(Prices::built_in());
        assert_eq!(prices.storage("s3", Some("us-east-1")).unwrap().source, "ours");
        assert_eq!(
            prices.storage("s3", Some("eu-west-1")).unwrap().put_usd_per_1000,
            0.005
        );
        assert_eq!(prices.storage.len(), Prices::built_in().storage.len());
    }

    #[test]
    fn an_invalid_price_is_refused() {
        let entry = |line: &str| {
            let text = format!(
                "[[storage]]\nprovider = \"p\"\nregion = \"r\"\nget_usd_per_1000 = 1\nstorage_usd_per_gib_month = 1\nsource = \"s\"\n{line}\n"
            );
            Prices::parse(&text).map_err(|error| error.to_string())
        };
        assert!(entry("put_usd_per_1000 = 1").is_ok());
        assert!(entry("put_usd_per_1000 = -1").unwrap_err().contains("p in r"));
        assert!(entry("put_usd_per_1000 = inf").is_err());
        assert!(entry("").unwrap_err().contains("put_usd_per_1000"));
        assert!(
            entry("put_usd_per_1000 = 1\nputs = 1")
                .unwrap_err()
                .contains("puts")
        );
        assert!(entry("put_usd_per_1000 = 1\nput_latency_ms = 0").is_err());
    }

    #[test]
    fn prices_older_than_ninety_days_cause_a_warning() {
        let warning = |date: &str| age_warning("s3", Some(day(date)), day("2026-11-21"));
        assert_eq!(warning("2026-08-23"), None);
        assert!(warning("2026-08-22").unwrap().contains("91 days ago"));
        assert!(
            age_warning("s3", None, day("2026-11-21"))
                .unwrap()
                .contains("no date")
        );
    }
}
