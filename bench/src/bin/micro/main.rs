//! `make bench-micro`: the hot pieces of gateway and consumer, each alone on one thread. For each piece it prints the
//! instructions per record, which valgrind counts and a busy machine does not change, and the CPU time, which it does.
//!
//! It starts no server and judges nothing: a change is judged by comparing two commits (`BASE=<commit>`).

mod data;
mod pieces;
mod report;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use nix::time::{ClockId, clock_gettime};
use pieces::{PIECES, Piece};
use report::{Figure, Report};

/// Count the instructions and the CPU time of the hot pieces.
#[derive(Debug, Parser)]
struct Flags {
    /// Only these pieces, for example logs-insert,logs-validate.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// Compare with the report in this file.
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,

    /// Write the report to this file, for a later --base.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Run each piece over little data: shows that the benchmark itself works.
    #[arg(long)]
    short: bool,

    /// Repeat the only piece for this many seconds, for a profiler, and measure nothing.
    #[arg(long, value_name = "SECONDS", requires = "only", conflicts_with_all = ["base", "report"])]
    profile: Option<u64>,

    /// Run the only piece once under valgrind's eyes.
    #[arg(long, hide = true, requires = "only")]
    counted: bool,

    /// A folder of *.log files whose lines become log bodies [default: generated text].
    #[arg(long, env = "MILLPOND_LOGHUB")]
    bodies: Option<PathBuf>,
}

/// Runs of a piece; the one with the least CPU time counts.
const REPEATS: usize = 9;

/// Records of a run of a piece that handles records.
const RECORDS: u64 = 20_000;
const RECORDS_SHORT: u64 = 200;

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("micro: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> anyhow::Result<()> {
    let mut pieces: Vec<&Piece> = PIECES.iter().collect();
    if !flags.only.is_empty() {
        for name in &flags.only {
            let known = || PIECES.map(|piece| piece.name).join(", ");
            ensure!(
                PIECES.iter().any(|piece| piece.name == name),
                "there is no piece {name}: use {}",
                known()
            );
        }
        pieces.retain(|piece| flags.only.iter().any(|name| piece.name == name));
    }
    let bodies = flags.bodies.as_deref();
    let records = if flags.short { RECORDS_SHORT } else { RECORDS };
    if flags.counted || flags.profile.is_some() {
        let [piece] = pieces[..] else {
            bail!("give exactly one piece with --only");
        };
        let mut work = (piece.prepare)(bodies, records)?;
        // Warm, as in a process that has run for a while.
        work.run();
        counted(&mut || work.run());
        let until = thread_cpu()? + Duration::from_secs(flags.profile.unwrap_or(0));
        while thread_cpu()? < until {
            work.run();
        }
        return Ok(());
    }
    if cfg!(debug_assertions) {
        eprintln!("micro: this is a debug build, so its figures mean nothing");
    }
    let base = flags.base.as_deref().map(Report::read).transpose()?;
    let valgrind = has_valgrind();
    if !valgrind {
        eprintln!("micro: there is no valgrind, so instructions are not counted: install it");
    }
    let mut report = Report::new(bodies);
    println!("{}\n{}", report.bodies, report.heading(base.as_ref()));
    for piece in pieces {
        let figure = measure(piece, bodies, records, flags.short, valgrind)?;
        println!("{}", report::line(piece.name, &figure, base.as_ref()));
        report.pieces.insert(piece.name.to_owned(), figure);
    }
    if let Some(file) = &flags.report {
        report.write(file)?;
        println!("written to {}", file.display());
    }
    Ok(())
}

fn measure(
    piece: &Piece,
    bodies: Option<&Path>,
    records: u64,
    short: bool,
    valgrind: bool,
) -> anyhow::Result<Figure> {
    let mut work = (piece.prepare)(bodies, records)?;
    let mut units = work.run();
    ensure!(units > 0, "{} has done nothing", piece.name);
    let mut least = Duration::MAX;
    for _ in 0..if short { 1 } else { REPEATS } {
        let before = thread_cpu()?;
        units = work.run();
        least = least.min(thread_cpu()?.saturating_sub(before));
    }
    let instructions = if valgrind {
        Some(instructions(piece, bodies, short)? as f64 / units as f64)
    } else {
        None
    };
    Ok(Figure {
        unit: piece.unit.to_owned(),
        instructions,
        nanoseconds: least.as_secs_f64() * 1e9 / units as f64,
    })
}

/// The function whose instructions valgrind counts, with everything that it calls.
#[inline(never)]
fn counted(work: &mut dyn FnMut() -> u64) -> u64 {
    std::hint::black_box(work())
}

fn has_valgrind() -> bool {
    let mut command = Command::new("valgrind");
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Counts the instructions of one run of a piece, in a process under callgrind.
fn instructions(piece: &Piece, bodies: Option<&Path>, short: bool) -> anyhow::Result<u64> {
    let out = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--toggle-collect=micro::counted*"]);
    command.arg(format!("--callgrind-out-file={}", out.path().display()));
    command.arg(std::env::current_exe()?);
    command.args(["--counted", "--only", piece.name]);
    command.env_remove("MILLPOND_LOGHUB");
    if let Some(bodies) = bodies {
        command.arg("--bodies").arg(bodies);
    }
    if short {
        command.arg("--short");
    }
    let output = command.output().context("valgrind did not start")?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "valgrind failed at {}:\n{log}",
        piece.name
    );
    let counts = std::fs::read_to_string(out.path())?;
    let total = counts
        .lines()
        .find_map(|line| line.strip_prefix("totals:"))
        .and_then(|total| total.trim().parse().ok())
        .with_context(|| format!("valgrind wrote no total for {}", piece.name))?;
    ensure!(total > 0, "valgrind counted nothing at {}", piece.name);
    Ok(total)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the CPU time of a thread, not the time of day"
)]
fn thread_cpu() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}
