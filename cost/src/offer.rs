//! Parses AWS's offer file (the bulk price list), as far as buckets need it: `products[sku].attributes.usagetype`
//! joined to `terms.OnDemand[sku].*.priceDimensions.*`.

use crate::{CostError, Prices, StoragePrice};
use chrono::NaiveDate;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Offer {
    offer_code: String,
    publication_date: String,
    products: BTreeMap<String, Product>,
    terms: Terms,
}

#[derive(Deserialize)]
struct Product {
    #[serde(default)]
    attributes: Attributes,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    #[serde(default)]
    servicecode: String,
    #[serde(default)]
    usagetype: String,
    #[serde(default)]
    region_code: String,
    /// `General Purpose` for S3 Standard; only storage has this attribute.
    #[serde(default)]
    storage_class: Option<String>,
}

#[derive(Deserialize)]
struct Terms {
    #[serde(rename = "OnDemand", default)]
    on_demand: BTreeMap<String, BTreeMap<String, Term>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    price_dimensions: BTreeMap<String, Dimension>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dimension {
    #[serde(default)]
    begin_range: Option<String>,
    price_per_unit: BTreeMap<String, String>,
}

/// The content of an offer file.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// Regions with complete prices.
    pub prices: Prices,
    /// Regions with missing prices, and what is missing.
    pub incomplete: Vec<String>,
}

const SERVICE: &str = "AmazonS3";

/// The usage types of S3 Standard's three prices.
const PUTS: &str = "Requests-Tier1";
const GETS: &str = "Requests-Tier2";
const STORAGE: &str = "TimedStorage-ByteHrs";

/// Reads S3 Standard's prices per region from an offer file.
///
/// # Errors
/// It is not an offer file of S3, or no region has all three prices.
pub fn import(text: &str) -> Result<Imported, CostError> {
    let wrong = |what: String| CostError::Offer(format!("it is not an offer file of {SERVICE}: {what}"));
    let offer: Offer = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if offer.offer_code != SERVICE {
        return Err(wrong(format!(
            "its offerCode is {:?}; save https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/{SERVICE}/current/index.json",
            offer.offer_code
        )));
    }
    let date = offer
        .publication_date
        .get(..10)
        .and_then(|day| day.parse::<NaiveDate>().ok());
    let date = date.ok_or_else(|| wrong(format!("its publicationDate is {:?}", offer.publication_date)))?;

    let mut regions: BTreeMap<String, BTreeMap<&str, f64>> = BTreeMap::new();
    for (sku, product) in &offer.products {
        let Some(kind) = kind(&product.attributes) else {
            continue;
        };
        let Some(price) = first_price(&offer.terms, sku).map_err(wrong)? else {
            continue;
        };
        let region = regions.entry(product.attributes.region_code.clone()).or_default();
        if let Some(before) = region.insert(kind, price)
            && before != price
        {
            return Err(wrong(format!(
                "region {} has two prices for {kind}: {before} and {price}",
                product.attributes.region_code
            )));
        }
    }
    let mut imported = Imported {
        prices: Prices::default(),
        incomplete: Vec::new(),
    };
    for (region, found) in regions {
        let missing: Vec<&str> = [PUTS, GETS, STORAGE]
            .into_iter()
            .filter(|kind| !found.contains_key(kind))
            .collect();
        if region.is_empty() || !missing.is_empty() {
            let what = if region.is_empty() {
                "products without a regionCode".to_owned()
            } else {
                format!("{region}: no {}", missing.join(", no "))
            };
            imported.incomplete.push(what);
            continue;
        }
        imported.prices.storage.push(StoragePrice {
            provider: "s3".to_owned(),
            region,
            put_usd_per_1000: thousand(found[PUTS]),
            get_usd_per_1000: thousand(found[GETS]),
            storage_usd_per_gib_month: found[STORAGE],
            upload_usd_per_gib: 0.0,
            download_usd_per_gib: 0.0,
            fixed_usd_per_month: 0.0,
            put_latency_ms: None,
            get_latency_ms: None,
            date: Some(date),
            source: format!("AWS offer file {SERVICE}, published {}", offer.publication_date),
        });
    }
    if imported.prices.storage.is_empty() {
        return Err(wrong(format!("no region in it has {PUTS}, {GETS} and {STORAGE}")));
    }
    Ok(imported)
}

/// AWS gives ten decimals; the multiplication adds the rest.
fn thousand(price: f64) -> f64 {
    (price * 1e13).round() / 1e10
}

/// Which of the three prices a product is. `EUC1-Requests-Tier1` is one; `EUC1-Requests-GLACIER-Tier1` is something
/// else.
fn kind(attributes: &Attributes) -> Option<&'static str> {
    if attributes.servicecode != SERVICE {
        return None;
    }
    let kind = [PUTS, GETS, STORAGE].into_iter().find(|kind| {
        let prefix = attributes.usagetype.strip_suffix(kind);
        prefix.is_some_and(|prefix| {
            let place = prefix.strip_suffix('-').unwrap_or(prefix);
            prefix.is_empty()
                || (prefix.ends_with('-')
                    && !place.is_empty()
                    && place
                        .chars()
                        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit()))
        })
    })?;
    let standard = attributes
        .storage_class
        .as_deref()
        .is_none_or(|class| class == "General Purpose");
    (kind != STORAGE || standard).then_some(kind)
}

/// The on-demand price of the first tier.
fn first_price(terms: &Terms, sku: &str) -> Result<Option<f64>, String> {
    let Some(of_sku) = terms.on_demand.get(sku) else {
        return Ok(None);
    };
    for dimension in of_sku.values().flat_map(|term| term.price_dimensions.values()) {
        if dimension.begin_range.as_deref().is_none_or(|from| from == "0") {
            let Some(usd) = dimension.price_per_unit.get("USD") else {
                return Err(format!("{sku} has no price in USD"));
            };
            let price: f64 = usd
                .parse()
                .map_err(|_| format!("the price of {sku} is {usd:?}"))?;
            return if price.is_finite() && price >= 0.0 {
                Ok(Some(price))
            } else {
                Err(format!("the price of {sku} is {usd:?}"))
            };
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../testdata/offer.json");

    #[test]
    fn an_offer_file_gives_every_region_that_is_whole() {
        let Imported { prices, incomplete } = import(FILE).unwrap();
        let names: Vec<&str> = prices.storage.iter().map(|entry| entry.region.as_str()).collect();
        assert_eq!(names, ["eu-central-1", "us-east-1"]);
        let frankfurt = prices.storage("s3", Some("eu-central-1")).unwrap();
        assert_eq!(
            (
                frankfurt.put_usd_per_1000,
                frankfurt.get_usd_per_1000,
                frankfurt.storage_usd_per_gib_month
            ),
            (0.0054, 0.00043, 0.0245)
        );
        let virginia = prices.storage("s3", Some("us-east-1")).unwrap();
        // Excludes Glacier requests, the second storage tier and Standard-IA.
        assert_eq!(
            (
                virginia.put_usd_per_1000,
                virginia.get_usd_per_1000,
                virginia.storage_usd_per_gib_month
            ),
            (0.005, 0.0004, 0.023)
        );
        assert_eq!(virginia.date, Some("2025-10-28".parse().unwrap()));
        assert_eq!(
            incomplete,
            ["sa-east-1: no Requests-Tier2, no TimedStorage-ByteHrs"]
        );
        assert_eq!(Prices::parse(&prices.to_toml()), Ok(prices));
    }

    #[test]
    fn an_invalid_offer_file_is_refused_with_the_reason() {
        let error = |text: &str| import(text).unwrap_err().to_string();
        assert!(error("{}").contains("offerCode"));
        assert!(error("nothing").contains("not an offer file"));
        let other = FILE.replace("\"offerCode\": \"AmazonS3\"", "\"offerCode\": \"AmazonEC2\"");
        assert!(error(&other).contains("pricing.us-east-1.amazonaws.com"));
        let undated = FILE.replace("2025-10-28T", "yesterday T");
        assert!(error(&undated).contains("publicationDate"));
        let free = FILE.replace("0.0000050000", "priceless");
        assert!(error(&free).contains("priceless"));
    }
}
