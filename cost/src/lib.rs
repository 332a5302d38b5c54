//! The monthly cost of a buffer from a load, settings and a price table.
//!
//! Pure arithmetic: this crate reads no file, clock or network. [`Activity`] models the request rates of producer,
//! consumer and garbage collector, [`Prices`] turns them into dollars, and [`Estimate`] finds the dominant item and
//! possible savings. `design/cost.md` has the formulas and sources.

mod activity;
mod advice;
mod chart;
mod comparators;
mod error;
mod estimate;
mod inserts;
mod items;
mod latency;
mod leader;
mod live;
mod offer;
mod prices;
mod rate;
mod settings;
mod sweep;

pub use activity::{Activity, CURSORS_AT_A_TIME, PerSecond, READS_FIRST};
pub use advice::{Advice, Change};
pub use chart::chart;
pub use comparators::{Comparator, OPENDATA_PUBLISHED, PublishedRates, comparators};
pub use error::CostError;
pub use estimate::{Compute, Dominant, Estimate, Inputs};
pub use inserts::Writers;
pub use items::{Basis, Group, Item};
pub use latency::{Latency, RequestLatency, linger_for};
pub use live::Observed;
pub use offer::{Imported, import};
pub use prices::{NetworkPrice, Prices, StoragePrice};
pub use rate::{Load, Rate};
pub use settings::{
    FORWARD_BELOW_MAX, NetworkPath, Settings, bytes as readable_bytes, time as readable_seconds,
};
pub use sweep::{Axis, Knob, Point, Sweep, sweep};

/// Seconds in the month of price lists: 730 hours.
pub const MONTH_SECONDS: f64 = 2_628_000.0;

/// Hours of that month.
pub const MONTH_HOURS: f64 = 730.0;

/// Bytes in a GiB, which price lists call a GB.
pub const GIB: f64 = 1_073_741_824.0;

/// Bytes of a MiB.
pub(crate) const MIB: f64 = 1_048_576.0;
