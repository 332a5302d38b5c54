//! The fault-free beginning and end of a run: at the end, everything in the log reaches every table, and no garbage is
//! left.

use super::consumers;
use super::gc::{gc, round};
use super::process::Process;
use super::producers::{append_one, start};
use super::record::{Event, Oracle};
use super::world::{World, consumer_name};
use millpond_consumer::ConsumeError;
use millpond_storage::Store;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Time limit for anything without faults. If a table cannot end requests, each later round has to wait for them.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// Creates every consumer's cursor before the first garbage collection, which from then on keeps what they have not
/// read.
pub(crate) async fn begin(world: &World, mut rng: StdRng) {
    let process = world.process("first".into(), &mut rng);
    let store = world.connect_well(&process);
    for shard in 0..world.scenario.shards {
        append_alone(world, &process, &store, shard, "first", &mut rng).await;
    }
    for consumer in 0..world.scenario.consumers {
        read_all(world, consumer, "first", &mut rng).await;
    }
}

pub(crate) async fn end(world: &World, mut rng: StdRng) {
    world.record.event("trouble", format_args!("is over"));
    world.heal().await;
    let process = world.process("last".into(), &mut rng);
    let store = world.connect_well(&process);
    for shard in 0..world.scenario.shards {
        append_alone(world, &process, &store, shard, "last", &mut rng).await;
    }
    for consumer in 0..world.scenario.consumers {
        read_all(world, consumer, "last", &mut rng).await;
    }
    if !world.rivals().is_empty() {
        let mut admitted = 0;
        // The claim of a killed rival stands until its consumer returns, if its clock was a day ahead. A greater name does not
        // wait for a lesser one, so the greatest comes first.
        for rival in world.rivals().rev() {
            admitted += usize::from(read_all(world, rival, "last", &mut rng).await);
        }
        if admitted == 0 {
            let detail = "each rival is refused, and none has the table".to_owned();
            world.record.violated(Oracle::Liveness, detail);
        }
    }
    world.record.add(Event::Unanswered, world.ledger.unanswered());
    if let Some(lost) = world.witness.lost() {
        world.record.violated(Oracle::Liveness, lost);
    }
    // Late enough for every clock in the run.
    let ahead_ms = i64::try_from((world.scenario.jump_max * 100).as_millis()).unwrap_or(i64::MAX / 2);
    process.machine.jump(ahead_ms + 1_000_000);
    sleep(world.scenario.grace).await;
    let mut gc = gc(world, &process, store);
    round(world, &process, &mut gc).await;
    // Consumers that drop repetitions read the log again from their last snapshots on.
    let is_all_garbage = world.scenario.windows.is_empty();
    if let Some(left) = world.witness.objects().first().filter(|_| is_all_garbage) {
        let detail = format!("{left} is left, which nobody needs");
        world.record.violated(Oracle::Liveness, detail);
    }
}

/// A producer without faults commits one message to a shard.
async fn append_alone(
    world: &World,
    process: &Arc<Process>,
    store: &Store,
    shard: u32,
    name: &str,
    rng: &mut StdRng,
) {
    let append = async {
        let (producer, _) = start(world, process, store.clone(), Some(shard), rng).await?;
        append_one(world, &producer, &format!("{name}-{shard}")).await;
        producer.drain(PATIENCE).await.ok()
    };
    if timeout(PATIENCE, append).await.ok().flatten().is_none() {
        let detail = format!("nothing can be committed to shard {shard:04}");
        world.record.violated(Oracle::Liveness, detail);
    }
}

/// One owner reads a consumer's whole backlog and releases the cursors cleanly. Returns false if another consumer has its table.
async fn read_all(world: &World, consumer: usize, name: &str, rng: &mut StdRng) -> bool {
    let process = world.process(format!("{name}-{consumer}"), rng);
    let store = world.connect_well(&process);
    let owner = consumers::start(world, consumer, &process, store, &process.name, true, rng);
    let Some(owner) = owner else { return false };
    let read = async {
        while !world.witness.is_read(&consumer_name(consumer)).0 && !owner.task.is_finished() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    if timeout(PATIENCE, read).await.is_err() {
        let (_, positions) = world.witness.is_read(&consumer_name(consumer));
        let waits = owner.readiness.waiting_for();
        let detail = format!(
            "{} makes no progress: {positions}waiting for {waits:?}",
            process.name
        );
        world.record.violated(Oracle::Liveness, detail);
        return false;
    }
    owner.shutdown.cancel();
    match timeout(PATIENCE, owner.task).await {
        Ok(Ok(Ok(()))) => {
            if let Some(unreleased) = world.witness.unreleased(&consumer_name(consumer)) {
                let detail = format!("{} has finished everything, and {unreleased}", process.name);
                world.record.violated(Oracle::Liveness, detail);
            }
            return true;
        }
        Ok(Ok(Err(ConsumeError::SharedTables { .. }))) if consumers::may_be_refused(world, consumer) => {}
        Ok(Ok(Err(error))) => {
            let detail = format!("{} gave up: {error}", process.name);
            world.record.violated(Oracle::Failure, detail);
        }
        // A panic is already a violation.
        Ok(Err(_)) => {}
        Err(_) => {
            let detail = format!("{} does not stop", process.name);
            world.record.violated(Oracle::Liveness, detail);
        }
    }
    false
}
