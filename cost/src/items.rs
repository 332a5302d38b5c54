//! The bill: groups of items, each with monthly quantity, unit and cost.

use crate::activity::Activity;
use crate::{CostError, GIB, MONTH_HOURS, MONTH_SECONDS, NetworkPath, Prices, Settings, StoragePrice};
use serde::{Deserialize, Serialize};

/// The source of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// From the model, for a described load.
    Predicted,
    /// Counted in a live buffer.
    Counted,
    /// From the model, based on counts in a live buffer.
    Estimated,
}

/// A line of the bill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Its purpose.
    pub name: String,
    /// Quantity per month.
    pub quantity_per_month: f64,
    /// Unit: `PUT`, `GET`, `LIST`, `DELETE`, `GiB`, `GiB-month`, `hour`, `month`.
    pub unit: String,
    /// Price per unit.
    pub usd_per_unit: f64,
    /// Monthly cost.
    pub usd_per_month: f64,
    /// Source of the quantity.
    pub basis: Basis,
}

/// A group of related items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The component that causes them.
    pub name: String,
    /// The sum.
    pub usd_per_month: f64,
    /// The lines.
    pub items: Vec<Item>,
}

/// The bill for this activity at a store's prices.
pub(crate) fn bill(
    activity: &Activity,
    settings: &Settings,
    price: &StoragePrice,
    prices: &Prices,
    basis: impl Fn(&str) -> Basis,
) -> Result<Vec<Group>, CostError> {
    let item = |name: &str, quantity: f64, unit: &str, usd: f64| Item {
        name: name.to_owned(),
        quantity_per_month: quantity,
        unit: unit.to_owned(),
        usd_per_unit: usd,
        usd_per_month: quantity * usd,
        basis: basis(name),
    };
    let put_usd = price.put_usd_per_1000 / 1_000.0;
    let put = |name, rate: f64| item(name, rate * MONTH_SECONDS, "PUT", put_usd);
    let list = |name, rate: f64| item(name, rate * MONTH_SECONDS, "LIST", put_usd);
    let get = |name, rate: f64| {
        item(
            name,
            rate * MONTH_SECONDS,
            "GET",
            price.get_usd_per_1000 / 1_000.0,
        )
    };
    let delete = |name, rate: f64| item(name, rate * MONTH_SECONDS, "DELETE", 0.0);
    let gib = |name, rate: f64, usd: f64| item(name, rate * MONTH_SECONDS / GIB, "GiB", usd);

    let mut storage = vec![item(
        "segments kept",
        activity.bytes_stored / GIB,
        "GiB-month",
        price.storage_usd_per_gib_month,
    )];
    if price.fixed_usd_per_month > 0.0 {
        storage.push(item("the store's nodes", 1.0, "month", price.fixed_usd_per_month));
    }
    let mut groups = vec![
        group(
            "producers",
            vec![
                put("segments", activity.segments),
                put("commits", activity.commits),
                put("commits refused (412)", activity.swaps_refused),
                get("manifest read again", activity.commit_reads),
                put("pages", activity.pages),
            ],
        ),
        group(
            "consumers",
            vec![
                get("manifest polls", activity.polls),
                get("parts of segments", activity.part_reads),
                get("pages read", activity.page_reads),
                put("cursor swaps", activity.cursor_swaps),
                get("processes standing by", activity.standby_reads),
                put("signs of life of processes", activity.member_beats),
                get("lists of processes", activity.member_beats),
            ],
        ),
        group(
            "garbage collection",
            vec![
                list("listings", activity.gc_lists),
                get("manifests, cursors and pages", activity.gc_reads),
                put("trims", activity.gc_swaps),
                delete("deletions", activity.deletes),
            ],
        ),
        group("growth", vec![get("looks for new shards", activity.buffer_looks)]),
        group("storage", storage),
    ];
    let traffic = traffic(activity, settings, price, prices, &item, &gib)?;
    if !traffic.is_empty() {
        groups.push(group("traffic", traffic));
    }
    Ok(groups)
}

fn traffic(
    activity: &Activity,
    settings: &Settings,
    price: &StoragePrice,
    prices: &Prices,
    item: &dyn Fn(&str, f64, &str, f64) -> Item,
    gib: &dyn Fn(&'static str, f64, f64) -> Item,
) -> Result<Vec<Item>, CostError> {
    let mut items = Vec::new();
    let provider = &price.provider;
    if price.upload_usd_per_gib > 0.0 {
        items.push(gib(
            "bytes written",
            activity.bytes_written,
            price.upload_usd_per_gib,
        ));
    }
    if price.download_usd_per_gib > 0.0 {
        items.push(gib("bytes read", activity.bytes_read, price.download_usd_per_gib));
    }
    let across_zones = [
        ("clients to gateways across zones", activity.bytes_across_zones),
        ("gateways to leaders across zones", activity.bytes_to_leaders),
    ];
    for (name, bytes) in across_zones.into_iter().filter(|(_, bytes)| *bytes > 0.0) {
        let what = "price of traffic across zones (cross_zone_usd_per_gib)";
        let (usd, _) = prices.network(provider, what, |network| network.cross_zone_usd_per_gib)?;
        items.push(gib(name, bytes, usd));
    }
    match settings.path {
        NetworkPath::Endpoint => {}
        NetworkPath::Nat => {
            let what = "price of a NAT gateway (nat_usd_per_hour, nat_usd_per_gib)";
            let (hour, _) = prices.network(provider, what, |network| network.nat_usd_per_hour)?;
            let (usd, _) = prices.network(provider, what, |network| network.nat_usd_per_gib)?;
            let gateways = f64::from(settings.zones);
            items.push(item("NAT gateways", gateways * MONTH_HOURS, "hour", hour));
            items.push(gib("to the bucket through NAT", activity.bytes_written, usd));
            items.push(gib("from the bucket through NAT", activity.bytes_read, usd));
        }
        NetworkPath::Internet => {
            let what = "price of traffic to the internet (egress_usd_per_gib)";
            let (usd, _) = prices.network(provider, what, |network| network.egress_usd_per_gib)?;
            items.push(gib("from the bucket to the internet", activity.bytes_read, usd));
        }
    }
    Ok(items)
}

fn group(name: &str, items: Vec<Item>) -> Group {
    Group {
        name: name.to_owned(),
        usd_per_month: items.iter().map(|item| item.usd_per_month).sum(),
        items,
    }
}

/// The sum of all groups.
pub(crate) fn total(groups: &[Group]) -> f64 {
    groups.iter().map(|group| group.usd_per_month).sum()
}
