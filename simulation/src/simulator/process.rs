//! Processes and their machines: clocks that jump, random numbers, and whether a process runs, stalls or is dead.

use millpond_runtime::Environment;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The start of every run, unix milliseconds.
const EPOCH_MS: i64 = 1_767_225_600_000;

/// Maximum duration of CPU work.
pub(crate) const CPU_TIME_MAX: Duration = Duration::from_millis(3);

/// A clock and random numbers.
pub(crate) struct Machine {
    begun: Instant,
    ahead_ms: AtomicI64,
    rng: Mutex<StdRng>,
}

impl Machine {
    pub(crate) fn new(seed: u64) -> Arc<Machine> {
        Arc::new(Machine {
            begun: Instant::now(),
            ahead_ms: AtomicI64::new(0),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
        })
    }

    /// Makes the clock jump.
    pub(crate) fn jump(&self, by_ms: i64) {
        self.ahead_ms.fetch_add(by_ms, Relaxed);
    }

    fn now(&self) -> i64 {
        let elapsed_us = i64::try_from(self.begun.elapsed().as_micros()).unwrap_or(i64::MAX);
        (EPOCH_MS + self.ahead_ms.load(Relaxed)) * 1_000 + elapsed_us
    }

    fn with_rng<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Timers and code of a stalled process still run in the simulation. What it sends waits until the stall ends, so
/// everything before that counts as done then.
impl Environment for Process {
    fn now_us(&self) -> i64 {
        self.machine.now()
    }

    /// During a stall, the time at its end: the process checks its lease then, just before it sends.
    fn uptime(&self) -> Duration {
        let now = Instant::now();
        let goes_on = match *self.life() {
            Life::Stalls { until } => until.max(now),
            Life::Runs | Life::Dead => now,
        };
        goes_on - self.machine.begun
    }

    fn random(&self) -> u64 {
        self.machine.with_rng(RngExt::random)
    }

    fn cpu_time(&self) -> Option<Duration> {
        Some(CPU_TIME_MAX.mul_f64(self.machine.with_rng(RngExt::random)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Stalls { until: Instant },
    Dead,
}

/// A named process that can stall and die. What it has sent continues without it.
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) machine: Arc<Machine>,
    life: Mutex<Life>,
    /// Not a watch channel: that wakes waiters in an order that no seed determines.
    changed: Notify,
}

impl Process {
    pub(crate) fn new(name: String, machine: Arc<Machine>) -> Arc<Process> {
        Arc::new(Process {
            name,
            machine,
            life: Mutex::new(Life::Runs),
            changed: Notify::new(),
        })
    }

    /// Waits while the process stalls; forever if it is dead.
    pub(crate) async fn turn(&self) {
        loop {
            let changed = self.changed.notified();
            if *self.life() == Life::Runs {
                return;
            }
            changed.await;
        }
    }

    /// Nothing leaves the process for this long. The caller wakes it.
    pub(crate) fn stall(&self, lasts: Duration) {
        let until = Instant::now() + lasts;
        *self.life() = Life::Stalls { until };
    }

    pub(crate) fn wake(&self) {
        *self.life() = Life::Runs;
        self.changed.notify_waiters();
    }

    /// Hides everything that the process does from now on.
    pub(crate) fn die(&self) {
        *self.life() = Life::Dead;
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
