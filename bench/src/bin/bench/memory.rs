//! The peak memory of gateway and consumer with small limits, under maximum load, while ClickHouse is stopped halfway.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::clickhouse;
use crate::shape::PATIENCE;
use crate::stack::{self, Settings, Stack};

pub(crate) const GATEWAY_LIMIT: u64 = 128 << 20;
pub(crate) const CONSUMER_LIMIT: u64 = 256 << 20;

const SETTINGS: Settings = Settings {
    gateway: &["--memory-limit", "128MiB"],
    consumer: &["--memory-limit", "256MiB", "--indexes", "bloom"],
    ..Settings::PLAIN
};

/// More requests than the gateway has memory for.
const LOAD_FLAGS: [&str; 4] = ["--records-per-request", "1000", "--concurrency", "512"];
/// The load goes on for this long beside the whole stall.
const LOAD_BEYOND: Duration = Duration::from_secs(2);

/// ClickHouse stands still for this long, once some records have arrived.
pub(crate) const STALL: Duration = Duration::from_secs(15);

#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) records: u64,
    /// Retries: the gateway refuses requests while it has no memory.
    pub(crate) retries: u64,
    pub(crate) stall_seconds: f64,
    /// Peak resident memory (VmHWM) in bytes.
    pub(crate) gateway: u64,
    pub(crate) gateway_limit: u64,
    pub(crate) consumer: u64,
    pub(crate) consumer_limit: u64,
}

pub(crate) async fn measure(bodies: Option<&Path>, stall: Duration) -> anyhow::Result<Memory> {
    let stack = Stack::start(SETTINGS).await?;
    let duration = format!("{}s", (stall + LOAD_BEYOND).as_secs());
    let load = stack.load(bodies, &[&LOAD_FLAGS[..], &["--duration", &duration]].concat())?;
    stack.delivered(1).await?;
    stack.engine.signal(Signal::SIGSTOP)?;
    let stalled = Instant::now();
    sleep(stall).await;
    stack.engine.signal(Signal::SIGCONT)?;
    let stall_seconds = stalled.elapsed().as_secs_f64();

    let sent = stack::sent(load, PATIENCE).await?;
    stack.delivered(sent.records_acknowledged).await?;
    let gateway = stack.gateways.first().context("a stack without a gateway")?;
    let memory = Memory {
        records: sent.records_acknowledged,
        retries: sent.retries,
        stall_seconds,
        gateway: gateway.process.peak_memory()?,
        gateway_limit: GATEWAY_LIMIT,
        consumer: stack.consumer.peak_memory()?,
        consumer_limit: CONSUMER_LIMIT,
    };
    println!(
        "memory, ClickHouse stalled: gateway {} MiB, consumer {} MiB at most",
        memory.gateway >> 20,
        memory.consumer >> 20
    );
    clickhouse::check_exact(stack.clickhouse, sent.records_acknowledged).await?;
    stack.stop().await?;
    Ok(memory)
}
