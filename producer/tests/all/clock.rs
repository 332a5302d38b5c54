//! A wrong wall clock does not move the lead: elections compare a monotonic clock with itself.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Seeded;
use crate::support::group::{Group, SECOND, Way, address, load, slow_store};
use millpond_manifest::Leader;
use millpond_producer::Producer;
use millpond_runtime::Environment;
use tokio::time::Instant;

/// A wall clock that is wrong by up to a day in either direction, by another time at each look.
struct WrongClock(Arc<Seeded>);

impl Environment for WrongClock {
    fn now_us(&self) -> i64 {
        const DAY_S: u32 = 86_400;
        let wrong_s = i64::from(self.below(2 * DAY_S)) - i64::from(DAY_S);
        self.0.now_us() + wrong_s * 1_000_000
    }

    fn uptime(&self) -> Duration {
        self.0.uptime()
    }

    fn random(&self) -> u64 {
        self.0.random()
    }
}

async fn lead(group: &Group) -> Leader {
    group.world.manifest().await.state.leader.expect("somebody leads")
}

/// Every other producer has a wrong clock, the leader included.
async fn group() -> Group {
    let mut group = Group::new(0, SECOND, slow_store()).await;
    let began = Instant::now();
    for number in 0..6 {
        let right = Seeded::running(began, number);
        let producer: Producer = if number % 2 == 0 {
            group.start_by(number, Arc::new(WrongClock(right))).await
        } else {
            group.start_by(number, right).await
        };
        group.producers.push(producer);
    }
    group
}

#[tokio::test(start_paused = true)]
async fn wrong_clocks_leave_the_lead_where_it_is() {
    let group = group().await;
    load(&group, 10).await;
    let first = lead(&group).await;
    load(&group, 120).await;
    let last = lead(&group).await;
    assert_eq!((last.producer, last.term), (first.producer, first.term));
    assert!(last.shared > first.shared + 50, "{first:?}, then {last:?}");
}

#[tokio::test(start_paused = true)]
async fn wrong_clocks_neither_keep_a_dead_leader_nor_change_its_successor() {
    let group = group().await;
    load(&group, 10).await;
    let first = lead(&group).await;
    let dead = first.address.clone();
    group.network.decide(move |to, _| match to.address == dead {
        true => Way::Closed,
        false => Way::Open,
    });
    // It is alive and commits for itself, so it still answers its own clients.
    load(&group, 20).await;
    let second = lead(&group).await;
    assert_ne!(second.address, first.address);
    assert!((0..6).any(|number| address(number) == second.address));
    load(&group, 60).await;
    let last = lead(&group).await;
    assert_eq!((last.producer, last.term), (second.producer, second.term));
}
