use super::*;
use millpond_storage::Store;
use millpond_storage::unreliable::{Controls, Fault, Faults, On, Outage, S3Latency};

const BYTES: u64 = 200_000;
const PART: &str = "segment";

async fn store(latency: Option<S3Latency>) -> (Store, Controls) {
    let store = Store::memory();
    let body = Bytes::from(vec![7; usize::try_from(BYTES).unwrap()]);
    store.put_if_absent(PART, vec![body]).await.unwrap();
    store.behind(Faults {
        latency,
        ..Faults::default()
    })
}

fn hedge(memory: usize) -> Hedge {
    Hedge::new(Budget::new(memory, Duration::ZERO), Counter::default())
}

async fn fetch(hedge: &Hedge, store: &Store) -> Result<Option<Bytes>, millpond_storage::Error> {
    hedge
        .first_answer(BYTES, || store.get_range(PART, 0..BYTES))
        .await
}

/// A hedge that knows the store, and has all second requests saved up.
async fn experienced(store: &Store) -> Hedge {
    let hedge = hedge(1 << 30);
    for _ in 0..REMEMBERED {
        fetch(&hedge, store).await.unwrap().unwrap();
    }
    hedge.history().saved = SAVED_MAX * REQUESTS_PER_HEDGE;
    hedge
}

#[tokio::test(start_paused = true)]
async fn late_answers_come_sooner_for_few_more_requests() {
    const FETCHES: usize = 4_000;
    let mut slowest = Vec::new();
    let mut requests = Vec::new();
    for hedged in [false, true] {
        let (store, _) = store(Some(S3Latency::default())).await;
        let hedge = hedge(1 << 30);
        let mut durations = Vec::new();
        for _ in 0..FETCHES {
            let began = Instant::now();
            let answer = if hedged {
                fetch(&hedge, &store).await
            } else {
                store.get_range(PART, 0..BYTES).await
            };
            answer.unwrap().unwrap();
            durations.push(began.elapsed());
        }
        durations.sort_unstable();
        println!(
            "hedged: {hedged}, p50 {:?}, p95 {:?}, p99 {:?}, max {:?}, {} requests",
            durations[FETCHES / 2],
            durations[FETCHES * 95 / 100],
            durations[FETCHES * 99 / 100],
            durations[FETCHES - 1],
            store.requests().get,
        );
        slowest.push(durations[FETCHES * 99 / 100]);
        requests.push(store.requests().get);
    }
    assert!(slowest[1] * 6 < slowest[0] * 5, "{slowest:?}");
    // A twentieth of the requests are late.
    let most = u64::try_from(FETCHES).unwrap() * 107 / 100;
    assert!((requests[0] + 1..=most).contains(&requests[1]), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_costs_no_timeout() {
    let (store, controls) = store(Some(S3Latency::default())).await;
    let hedge = experienced(&store).await;
    controls.once(On::Get, PART, Fault::Hangs);
    let began = Instant::now();
    fetch(&hedge, &store).await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn only_bytes_make_the_second_answer_count() {
    let (store, controls) = store(None).await;
    let hedge = experienced(&store).await;
    let held = controls.hold(On::Get, PART);
    controls.once(On::Get, PART, Fault::Lost);
    let (answer, ()) = tokio::join!(fetch(&hedge, &store), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(hedge.made.get(), 1);
        assert_eq!(controls.unused(), 0, "the second request has not failed");
        held.release();
    });
    assert_eq!(answer.unwrap().expect("there").len() as u64, BYTES);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_absent_for_the_second_request_alone_is_there() {
    let (store, controls) = store(None).await;
    let hedge = experienced(&store).await;
    let held = std::sync::Mutex::new(Some(controls.hold(On::Get, PART)));
    let asked = std::sync::atomic::AtomicUsize::new(0);
    // A store whose second copy lacks the object.
    let answer = hedge
        .first_answer(BYTES, || {
            let second = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1;
            let (store, held) = (&store, &held);
            async move {
                if second {
                    drop(held.lock().unwrap().take());
                    return Ok(None);
                }
                store.get_range(PART, 0..BYTES).await
            }
        })
        .await;
    assert!(answer.unwrap().is_some(), "the first answer has the bytes");
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_counts_whatever_it_is() {
    let (store, controls) = store(None).await;
    let hedge = experienced(&store).await;
    controls.once(On::Get, PART, Fault::Lost);
    assert!(fetch(&hedge, &store).await.is_err());
    assert_eq!(hedge.made.get(), 0, "the first request was not late");
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_not_asked_twice_for_everything() {
    let (store, controls) = store(Some(S3Latency::default())).await;
    let hedge = experienced(&store).await;
    controls.set_outage(Some(Outage::Hangs));
    let made = hedge.made.get();
    let before = store.requests().get;
    let fetches = (0..100).map(|_| fetch(&hedge, &store));
    for answer in futures::future::join_all(fetches).await {
        assert!(answer.is_err());
    }
    // All fetches began before one was late.
    assert_eq!(hedge.made.get() - made, u64::from(SAVED_MAX));
    assert_eq!(store.requests().get - before, 100 + hedge.made.get() - made);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_twice_without_memory_for_a_second_answer() {
    let (store, controls) = store(None).await;
    let mut hedge = experienced(&store).await;
    hedge.memory = Budget::new(usize::try_from(BYTES).unwrap() - 1, Duration::ZERO);
    let held = controls.hold(On::Get, PART);
    let (answer, ()) = tokio::join!(fetch(&hedge, &store), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(hedge.made.get(), 0);
        held.release();
    });
    answer.unwrap().unwrap();
}

#[test]
fn sizes_are_told_apart() {
    let classes = [
        1,
        64 << 10,
        (64 << 10) + 1,
        512 << 10,
        4 << 20,
        32 << 20,
        (32 << 20) + 1,
        u64::MAX,
    ];
    assert_eq!(classes.map(History::class), [0, 0, 1, 1, 2, 3, 4, 4]);
}

#[test]
fn a_store_that_is_hardly_known_is_asked_once() {
    let mut history = History::new();
    for _ in 1..REMEMBERED_MIN {
        history.ended(BYTES, Duration::from_millis(10));
    }
    assert_eq!(history.patience(BYTES), None);
    history.ended(BYTES, Duration::from_millis(10));
    assert_eq!(history.patience(BYTES), Some(Duration::from_millis(10)));
    assert_eq!(
        history.patience(BYTES << 3),
        None,
        "of another size nothing is known"
    );
    // A local disk.
    (0..REMEMBERED).for_each(|_| history.ended(BYTES, Duration::from_micros(50)));
    assert_eq!(history.patience(BYTES), Some(PATIENCE_MIN));
}
