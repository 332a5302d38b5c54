//! `millpond cost`: the monthly cost of a described load or of a live buffer. The crate `millpond-cost` has the arithmetic; this module has
//! flags, files and tables.

mod args;
mod print;

use crate::output::{plain, say, write};
use anyhow::{Context, bail};
use args::CostArgs as Args;
pub(crate) use args::CostArgs;
use args::{CostCommand, PricesCommand};
use chrono::{DateTime, NaiveDate};
use millpond_cost::{
    Estimate, Inputs, Load, Prices, Rate, RequestLatency, Settings, chart, import, linger_for, sweep,
};
use millpond_operate::observe::observe;
use millpond_runtime::{Environment as _, SystemEnvironment};
use std::path::Path;

/// Default ratio of raw to stored bytes: real logs of twelve systems, measured in `design/performance.md`.
const RATIO: f64 = 5.4;
// The arithmetic has the numbers of the producer, the garbage collector and the gateway.
const _: () = assert!(millpond_cost::CURSORS_AT_A_TIME == millpond_consumer::gc::CURSORS_AT_A_TIME);
const _: () = assert!(millpond_cost::READS_FIRST == millpond_producer::reads_first::READS_FIRST);
const _: () = assert!(millpond_cost::FORWARD_BELOW_MAX == crate::peers::FORWARD_BELOW_MAX as f64);

/// Prints the estimate.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match &args.command {
        Some(CostCommand::Prices(PricesCommand::Import { file })) => import_prices(file),
        Some(CostCommand::Prices(PricesCommand::Print { prices })) => {
            write(format_args!("{}", table(prices.as_deref())?.to_toml()))
        }
        None if args.live.buffer.is_some() => live(&args).await,
        None => described(&args),
    }
}

fn described(args: &Args) -> anyhow::Result<()> {
    let load = args.load.load()?;
    let prices = table(args.prices.as_deref())?;
    let request = args.request(&prices)?;
    let axes = args.axes()?;
    args.check(&axes)?;
    let mut settings = args.settings.settings()?;
    let target_seconds = args.settings.latency.map(|target| target.0.as_secs_f64());
    if let Some(target) = target_seconds {
        settings.linger_seconds = linger_for(target, &load, &settings, request)?;
    }
    let inputs = args.inputs(load, &settings, request, &prices, target_seconds);
    if axes.is_empty() {
        let estimate = Estimate::of(&inputs)?;
        return args.show(&estimate, || print::estimate(&estimate, None, args.compare));
    }
    let found = sweep(&inputs, &axes)?;
    if let Some(file) = &args.chart {
        let title = format!("{}, {}", print::load(&load), print::place(inputs.price()?));
        std::fs::write(file, chart(&found, &title)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    args.show(&found, || print::sweep(&found))
}

async fn live(args: &Args) -> anyhow::Result<()> {
    args.check(&args.axes()?)?;
    let prices = table(args.prices.as_deref())?;
    let request = args.request(&prices)?;
    let buffer = args.live.buffer.clone().context("--buffer is missing")?;
    let store = args.live.s3.clone().store(buffer).open(false).await?;
    let seen = observe(&store, args.live.since.0).await?;
    let settings = args.settings.settings()?;
    // The observed load replaces this one, except the ratio, when the log has no entry to tell it.
    let load = Load::compressed(Rate(1.0), args.load.ratio.unwrap_or(RATIO));
    let inputs = args.inputs(load, &settings, request, &prices, None);
    let estimate = Estimate::of_live(&inputs, &seen.observed)?;
    if args.json {
        let mut answer = serde_json::to_value(&estimate)?;
        answer["observed"] = serde_json::to_value(&seen.observed)?;
        say!("{answer}")
    } else {
        write(format_args!(
            "{}",
            print::estimate(&estimate, Some(&seen), args.compare)
        ))
    }
}

/// The built-in prices, overridden by those of a file.
fn table(file: Option<&Path>) -> anyhow::Result<Prices> {
    let Some(file) = file else {
        return Ok(Prices::built_in());
    };
    let text = read(file)?;
    let prices = Prices::parse(&text).with_context(|| format!("price file {}", file.display()))?;
    Ok(prices.over(Prices::built_in()))
}

fn import_prices(file: &Path) -> anyhow::Result<()> {
    let imported = import(&read(file)?).with_context(|| format!("cannot import {}", file.display()))?;
    for what in &imported.incomplete {
        eprintln!("millpond: left out: {}", plain(what));
    }
    write(format_args!("{}", imported.prices.to_toml()))
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Today in UTC.
fn today() -> NaiveDate {
    let ms = i64::try_from(SystemEnvironment.now_ms()).unwrap_or(i64::MAX);
    DateTime::from_timestamp_millis(ms)
        .unwrap_or_default()
        .date_naive()
}

impl Args {
    fn inputs<'a>(
        &'a self,
        load: Load,
        settings: &'a Settings,
        request: RequestLatency,
        prices: &'a Prices,
        target_seconds: Option<f64>,
    ) -> Inputs<'a> {
        Inputs {
            load,
            settings,
            request,
            prices,
            provider: &self.provider,
            region: self.region.as_deref(),
            target_seconds,
            today: today(),
        }
    }

    /// The latency of requests: from the flags, else from the price table.
    fn request(&self, prices: &Prices) -> anyhow::Result<RequestLatency> {
        let mut request = RequestLatency::of(prices.storage(&self.provider, self.region.as_deref())?);
        if let Some(put) = self.settings.put_latency {
            request.put_seconds = put.0.as_secs_f64();
        }
        if let Some(get) = self.settings.get_latency {
            request.get_seconds = get.0.as_secs_f64();
        }
        Ok(request)
    }

    fn show<T: serde::Serialize>(&self, answer: &T, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json {
            say!("{}", serde_json::to_string(answer)?)
        } else {
            write(format_args!("{}", text()))
        }
    }

    /// Rejects flags that contradict each other.
    fn check(&self, axes: &[millpond_cost::Axis]) -> anyhow::Result<()> {
        let swept = |knob| axes.iter().any(|axis| axis.knob == knob);
        if self.settings.latency.is_some()
            && (self.settings.linger.is_some() || swept(millpond_cost::Knob::Linger))
        {
            bail!(
                "--latency decides the linger: give either --latency or a linger (--linger, --sweep linger=…)"
            );
        }
        if self.compare && !axes.is_empty() {
            bail!("--compare prices one load, not a sweep: leave out --sweep, or --compare");
        }
        if self.chart.is_some() && axes.is_empty() {
            bail!(
                "--chart draws a sweep: give --sweep too, like --sweep linger=250ms,1s,5s,segment=4MiB,16MiB"
            );
        }
        if self.live.buffer.is_none() {
            return Ok(());
        }
        if self.load.is_given() {
            bail!(
                "--buffer prices a live buffer, --throughput and --events a load that you describe: give one of them"
            );
        }
        if !axes.is_empty() || self.settings.latency.is_some() {
            bail!(
                "--buffer prices the settings that a live buffer has: leave out --sweep and --latency, or describe the load with --throughput"
            );
        }
        if let Some(flag) = self.settings.observed() {
            bail!("{flag} follows from the buffer: leave it out with --buffer");
        }
        Ok(())
    }
}
