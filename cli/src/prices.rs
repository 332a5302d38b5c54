//! What requests to the store cost, so that whoever looks at the metrics sees dollars too.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

/// The price list of the store.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct PriceArgs {
    /// US dollars for 1,000 PUT or LIST requests, for the metrics and the status page. 0.005: S3 Standard in us-east-1.
    #[arg(
        long,
        env = "MILLPOND_PRICE_PUT",
        value_name = "DOLLARS",
        default_value_t = 0.005
    )]
    price_put: f64,

    /// US dollars for 1,000 GET or HEAD requests. 0.0004: S3 Standard in us-east-1.
    #[arg(
        long,
        env = "MILLPOND_PRICE_GET",
        value_name = "DOLLARS",
        default_value_t = 0.0004
    )]
    price_get: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    /// As in `millpond_store_requests_total`.
    kind: &'static str,
}

impl PriceArgs {
    /// Shows the prices; times the rate of `millpond_store_requests_total` they are dollars a second. Deleting is free.
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
