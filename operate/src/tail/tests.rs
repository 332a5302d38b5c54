use super::*;
use crate::growth::grow;
use millpond_manifest::{Buffer, Claim, Commit, NewPart, NewSegment, ProducerId};
use ulid::Ulid;
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(42);

struct Nothing;

impl Show for Nothing {
    fn record(&mut self, _: &Found<'_>) -> anyhow::Result<()> {
        anyhow::bail!("there is no record")
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// The log of a shard with one entry.
fn one_entry(shard: u32) -> Manifest {
    let producer = ProducerId([7; 16]);
    let part = NewPart {
        stream: "events".into(),
        encoding: Encoding::Ndjson,
        offset: 0,
        length: 1,
        raw_len: 1,
        messages: 1,
        records: 1,
        first_received_at_us: 1,
        last_received_at_us: 1,
    };
    let segment = NewSegment {
        segment: Ulid::from_parts(1, 1),
        size: 10,
        parts: vec![part],
    };
    let log = Manifest::new(ID, shard).register(producer, 1);
    let Ok(Commit { state, .. }) = log.commit(&[Claim::one(producer, 1, 0..1)], &[segment], 1) else {
        panic!("the log refuses a segment")
    };
    state.stamped(1)
}

async fn tail(store: &Store, shard: Option<u32>) -> Tail {
    let options = Options {
        streams: Vec::new(),
        shard,
        from: Target::Latest,
    };
    Tail::open(store.clone(), options).await.unwrap()
}

fn followed(tail: &Tail) -> Vec<u32> {
    tail.shards.iter().map(|(shard, _)| *shard).collect()
}

#[tokio::test(start_paused = true)]
async fn new_shards_of_the_buffer_are_followed_from_their_beginning() {
    let store = Store::memory();
    cas::create_once(&store, layout::BUFFER, Buffer::new(ID, 1))
        .await
        .unwrap();
    let (mut all, mut first) = (tail(&store, None).await, tail(&store, Some(0)).await);
    grow(&store, 3).await.unwrap();
    for tail in [&mut all, &mut first] {
        tokio::time::sleep(LOOK).await;
        tail.poll(&mut Nothing).await.unwrap();
    }
    assert_eq!(followed(&all), [0, 1, 2]);
    assert_eq!(followed(&first), [0], "only this one was selected");
    assert_eq!(all.begin(one_entry(0)).await.unwrap().next, 1);
    assert_eq!(all.begin(one_entry(2)).await.unwrap().next, 0);
}
