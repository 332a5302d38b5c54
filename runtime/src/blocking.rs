//! Work that would hold up a thread of the runtime: CPU work, and calls that block. It runs on tokio's blocking pool,
//! and in a simulation on the only thread.
#![expect(clippy::disallowed_methods, reason = "this module owns the blocking pool")]

use crate::Environment;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::sleep;

/// Runs `work`. An error is its panic.
pub async fn run<T: Send + 'static>(
    environment: &dyn Environment,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let Some(time) = environment.cpu_time() else {
        return spawn_blocking(work).await;
    };
    sleep(time).await;
    Ok(work())
}

/// Runs `work`. Its panic is the caller's panic too.
pub async fn compute<T: Send + 'static>(
    environment: &dyn Environment,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let done = run(environment, work).await;
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Runs `work`, which passes on its results as it makes them. It is one result ahead of the receiver, and stops when
/// `emit` returns false. The handle has the outcome.
pub fn generate<T: Send + 'static, R: Send + 'static>(
    environment: &dyn Environment,
    work: impl FnOnce(&mut dyn FnMut(T) -> bool) -> R + Send + 'static,
) -> (mpsc::Receiver<T>, JoinHandle<R>) {
    let (sender, results) = mpsc::channel(1);
    let working = match environment.cpu_time() {
        None => spawn_blocking(move || work(&mut |result| sender.blocking_send(result).is_ok())),
        Some(time) => tokio::spawn(async move {
            sleep(time).await;
            // Nothing may block the only thread, so `work` makes all results before the first is received.
            let mut all = Vec::new();
            let outcome = work(&mut |result| {
                all.push(result);
                true
            });
            for result in all {
                if sender.send(result).await.is_err() {
                    break;
                }
            }
            outcome
        }),
    };
    (results, working)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemEnvironment;
    use std::time::Duration;

    struct OneThread;

    impl Environment for OneThread {
        fn now_us(&self) -> i64 {
            0
        }

        fn uptime(&self) -> Duration {
            Duration::ZERO
        }

        fn random(&self) -> u64 {
            0
        }

        fn cpu_time(&self) -> Option<Duration> {
            Some(Duration::from_secs(3))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_on_one_thread_takes_its_time_on_the_clock_of_the_runtime() {
        let began = tokio::time::Instant::now();
        assert_eq!(run(&OneThread, || 7).await.unwrap(), 7);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test]
    async fn a_panic_on_the_pool_is_an_error() {
        let panicked = run(&SystemEnvironment, || panic!("on purpose")).await;
        assert!(panicked.unwrap_err().is_panic());
    }

    #[tokio::test(start_paused = true)]
    async fn results_and_the_outcome_arrive_with_and_without_threads() {
        for environment in [&SystemEnvironment as &dyn Environment, &OneThread] {
            let count = |emit: &mut dyn FnMut(u32) -> bool| (0..5).take_while(|&number| emit(number)).count();
            let (mut results, working) = generate(environment, count);
            let mut received = Vec::new();
            while let Some(result) = results.recv().await {
                received.push(result);
            }
            assert_eq!(received, [0, 1, 2, 3, 4]);
            assert_eq!(working.await.unwrap(), 5);
        }
    }

    #[tokio::test]
    async fn work_stops_when_nobody_receives() {
        let forever = |emit: &mut dyn FnMut(u64) -> bool| (0..).find(|&number| !emit(number));
        let (results, working) = generate(&SystemEnvironment, forever);
        drop(results);
        assert_eq!(working.await.unwrap(), Some(0));
    }
}
