//! The machine's clocks and generator: the only place that reads them.
#![expect(
    clippy::disallowed_methods,
    reason = "this module owns the clocks and the generator"
)]

use crate::Environment;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The environment of a real process.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    fn now_us(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    fn uptime(&self) -> Duration {
        uptime()
    }

    fn random(&self) -> u64 {
        rand::random()
    }
}

/// On Linux, `Instant` stands still while the machine is suspended.
#[cfg(target_os = "linux")]
fn uptime() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .expect("Linux has this clock since 2.6.39")
        .into()
}

#[cfg(not(target_os = "linux"))]
fn uptime() -> Duration {
    static BEGAN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(std::time::Instant::now).elapsed()
}
