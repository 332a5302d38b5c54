//! The prices of requests to the store, as metrics.

use millpond_cost::{Prices, StoragePrice};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;

/// The price list of the store.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct PriceArgs {
    /// US dollars per 1,000 PUT or LIST requests, for the metrics and the status page. The default is S3 Standard's in
    /// us-east-1 (`millpond cost prices print` lists others).
    #[arg(
        long,
        env = "MILLPOND_PRICE_PUT",
        value_name = "DOLLARS",
        default_value_t = BUILT_IN.put_usd_per_1000,
        value_parser = price,
        allow_hyphen_values = true
    )]
    price_put: f64,

    /// US dollars per 1,000 GET or HEAD requests. The default is S3 Standard's in us-east-1.
    #[arg(
        long,
        env = "MILLPOND_PRICE_GET",
        value_name = "DOLLARS",
        default_value_t = BUILT_IN.get_usd_per_1000,
        value_parser = price,
        allow_hyphen_values = true
    )]
    price_get: f64,
}

/// S3 Standard's in us-east-1, as `millpond cost` has them.
static BUILT_IN: LazyLock<StoragePrice> = LazyLock::new(|| {
    let prices = Prices::built_in();
    let price = prices.storage("s3", Some("us-east-1"));
    price.expect("the built-in table has it").clone()
});

fn price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().ok();
    price
        .filter(|price| price.is_finite() && *price >= 0.0)
        .ok_or_else(|| "write US dollars for 1,000 requests, 0 or more, like 0.005".to_owned())
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    /// The kind in `millpond_store_requests_total`.
    kind: &'static str,
}

impl PriceArgs {
    /// Registers the prices. Multiplied by the rate of `millpond_store_requests_total`, they give dollars per second. Deletes are free.
    pub(crate) fn register(self, registry: &mut Registry) {
        let prices = Family::<KindLabel, Gauge<f64, AtomicU64>>::default();
        for (kind, of_1000) in [
            ("put", self.price_put),
            ("list", self.price_put),
            ("get", self.price_get),
            ("head", self.price_get),
            ("delete", 0.0),
        ] {
            prices.get_or_create(&KindLabel { kind }).set(of_1000 / 1_000.0);
        }
        registry.register(
            "millpond_store_price_dollars",
            "The configured price of one request to the store, by kind",
            prices,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        prices: PriceArgs,
    }

    #[test]
    fn prices_default_to_those_of_the_estimator() {
        let PriceArgs { price_put, price_get } = Line::parse_from(["it"]).prices;
        assert_eq!(
            (price_put, price_get),
            (BUILT_IN.put_usd_per_1000, BUILT_IN.get_usd_per_1000)
        );
        assert!(price_put > price_get && price_get > 0.0);
    }

    #[test]
    fn an_invalid_price_is_refused() {
        for wrong in ["-1", "NaN", "inf", "free", ""] {
            let error = Line::try_parse_from(["it", "--price-put", wrong]).err().unwrap();
            assert!(error.to_string().contains("0 or more"), "{wrong}: {error}");
        }
        assert_eq!(Line::parse_from(["it", "--price-put", "0"]).prices.price_put, 0.0);
    }
}
