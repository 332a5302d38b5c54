//! How often a leader commits whose followers upload their segments. It commits at once, one commit at a time, and what arrives
//! meanwhile shares the next one.
//!
//! The followers close their segments together. A leader that takes blocks tells them when. Without blocks, those that share a
//! commit get their answers at the same time, and close the next segments when as many callers wait as before.

use crate::RequestLatency;

/// The standard deviation of the logarithm of a PUT's duration: at its p99 it takes 3.5 times its mean. From the distribution
/// that `make bench` uses.
const SPREAD: f64 = 0.61;
/// The standard normal distribution in eight equally probable values.
const NORMAL: [f64; 8] = [-1.534, -0.887, -0.489, -0.157, 0.157, 0.489, 0.887, 1.534];
/// Steps of the calculation in the mean time of a PUT.
const STEPS_OF_A_PUT: f64 = 40.0;
/// All uploads that begin together have ended after this number of mean times.
const BURST_PUTS: f64 = 16.0;
/// The number of intervals after which one is like the next.
const SETTLED: usize = 3;

/// The commits per second of a leader that is asked to commit this often, at random.
fn commits_at_random(requests: f64, request: RequestLatency) -> f64 {
    let put = request.put_seconds;
    let idle: f64 = durations(put).map(|busy| (-requests * busy).exp()).iter().sum();
    1.0 / (put + idle / real(NORMAL.len()) / requests)
}

/// The commits per second of a leader that `followers` ask in each interval, when the segments that they closed together are
/// uploaded. Its own segments come `own` times per second, at random.
pub(crate) fn commits_of_a_leader(interval: f64, followers: f64, own: f64, request: RequestLatency) -> f64 {
    // Requests that come together share more commits than those at random.
    let most = commits_at_random(followers / interval + own, request);
    let step = followers.min(1.0);
    if step == 0.0 {
        return most;
    }
    let commits = |followers| commits_of_about(interval, followers, own, request);
    let [fewer, about, more] = [followers - step, followers, followers + step].map(commits);
    // From a random number of followers to a certain one: two that ask in an interval nearly always take two commits.
    let bend = (more - 2.0 * about + fewer) / (step * step);
    (about - followers / 2.0 * bend).min(most)
}

/// The same for a random number of followers, with this mean.
fn commits_of_about(interval: f64, followers: f64, own: f64, request: RequestLatency) -> f64 {
    let put = request.put_seconds;
    let step = put / STEPS_OF_A_PUT;
    let burst = interval.min(BURST_PUTS * put);
    let steps = count((burst / step).ceil()).max(1);
    let step = burst / real(steps);
    // If the interval is shorter than the burst, one begins in the other.
    let laps = if interval > burst { 1 } else { SETTLED };
    let earlier = count(BURST_PUTS * put / interval);
    let arrivals: Vec<f64> = (0..steps)
        .map(|at| {
            let time = (real(at) + 0.5) * step;
            let ends = (0..=earlier).map(|lap| ends(time + real(lap) * interval, put));
            (followers * ends.sum::<f64>() + own) * step
        })
        .collect();
    let in_burst = starts(
        &arrivals,
        laps,
        &durations(put).map(|busy| count((busy / step).round())),
    );
    let between = (interval - burst) * commits_at_random(own, request);
    (in_burst + between) / interval
}

/// The commits in the last of some laps with these arrivals in each step. A commit takes one of the durations, in steps.
fn starts(arrivals: &[f64], laps: usize, durations: &[usize; NORMAL.len()]) -> f64 {
    let steps = arrivals.len();
    let weight = 1.0 / real(durations.len());
    let (mut begun, mut arrived) = (Vec::new(), vec![0.0]);
    // The probability that no commit is under way.
    let (mut idle, mut sum) = (1.0, 0.0_f64);
    for at in 0..steps * laps {
        let now = arrivals[at % steps];
        arrived.push(sum + now);
        sum += now;
        let (mut next, mut rests) = (idle * (1.0 - (-now).exp()), idle * (-now).exp());
        for &busy in durations {
            let busy = busy.max(1);
            let Some(before) = at.checked_sub(busy) else {
                continue;
            };
            let nobody_came = (arrived[before + 1] - arrived[at + 1]).exp();
            let ended: f64 = weight * begun[before];
            next += ended * (1.0 - nobody_came);
            rests += ended * nobody_came;
        }
        idle = rests;
        begun.push(next);
    }
    begun[steps * (laps - 1)..].iter().sum()
}

/// The durations of PUTs with this mean, equally probable.
fn durations(put: f64) -> [f64; NORMAL.len()] {
    let of = |normal: f64| (SPREAD * normal).exp();
    let mean = NORMAL.into_iter().map(of).sum::<f64>() / real(NORMAL.len());
    NORMAL.map(|normal| put * of(normal) / mean)
}

/// The probability density of an upload's end at this time.
fn ends(time: f64, put: f64) -> f64 {
    let median = put * (-SPREAD * SPREAD / 2.0).exp();
    let normal = (time / median).ln() / SPREAD;
    (-normal * normal / 2.0).exp() / (time * SPREAD * std::f64::consts::TAU.sqrt())
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand")]
fn real(count: usize) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive number of steps, a few thousand at most"
)]
fn count(steps: f64) -> usize {
    steps as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64, within: f64) {
        assert!(
            (found / expected - 1.0).abs() < within,
            "{found} instead of {expected}"
        );
    }

    /// Gateways with 1.1 Gbps of raw telemetry in virtual time (`simulation/tests/fleets.rs`).
    #[test]
    fn it_agrees_with_what_was_counted() {
        for (gateways, interval, counted) in [
            (16.0, 1.0, 4.40),
            (48.0, 1.0, 5.30),
            (64.0, 1.0, 5.67),
            (16.0, 0.25, 12.83),
            (48.0, 0.25, 13.07),
            (64.0, 0.25, 13.33),
        ] {
            let found = commits_of_a_leader(
                interval,
                gateways - 1.0,
                1.0 / interval,
                RequestLatency::default(),
            );
            near(found, counted, 0.1);
        }
    }

    #[test]
    fn a_lone_request_is_a_commit_and_a_crowd_shares_the_next_one() {
        let request = RequestLatency::default();
        near(commits_at_random(0.1, request), 0.1, 0.01);
        near(commits_at_random(1e6, request), 1.0 / request.put_seconds, 0.01);
        near(commits_of_a_leader(10.0, 1e-6, 0.1, request), 0.1, 0.01);
        // Requests at an interval much longer or much shorter than a PUT are like those at random.
        near(
            commits_of_a_leader(0.01, 1.0, 1.0, request),
            commits_at_random(101.0, request),
            0.01,
        );
    }
}
