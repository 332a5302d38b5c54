//! The question about a chunk, and the meaning of an answer.

use super::*;
use millpond_consumer::Received;

fn chunk(runs: &[(u64, u32, u64)]) -> Chunk {
    let received = runs.iter().map(|&(sequence, record, rows)| Received {
        at_us: 0,
        rows,
        first: RowId { sequence, record },
    });
    Chunk {
        index: 0,
        table: 0,
        rows: runs.iter().map(|(_, _, rows)| rows).sum(),
        raw_bytes: 0,
        body: Vec::new(),
        received: received.collect(),
    }
}

fn there(sequence: u64, records: &[u32]) -> There {
    There {
        server: String::new(),
        sequence,
        records: records.to_vec(),
    }
}

#[test]
fn rows_that_no_server_has_are_lacking() {
    let chunk = chunk(&[(7, 5, 3), (7, 20, 1), (9, 0, 2)]);
    let lacks = |answer: Vec<There>| compare(&chunk, answer, 1);
    assert_eq!(lacks(vec![]).lacks, [0, 1, 2, 3, 4, 5]);
    let compared = lacks(vec![there(7, &[4, 6, 20, 21]), there(8, &[0, 1]), there(9, &[1])]);
    assert_eq!(compared.lacks, [0, 2, 4]);
    assert_eq!(compared.repeated, BTreeMap::new());
    // Two replicas, neither of which has all.
    let compared = lacks(vec![there(7, &[5, 6]), there(7, &[6, 7, 20]), there(9, &[0, 1])]);
    assert_eq!((compared.lacks, compared.repeated), (vec![], BTreeMap::new()));
}

#[test]
fn a_row_that_every_replica_must_have_is_lacking_until_they_do() {
    let chunk = chunk(&[(7, 0, 2)]);
    let of = |answer: Vec<There>| {
        let Compared { lacks, partial, .. } = compare(&chunk, answer, 2);
        (lacks, partial)
    };
    assert_eq!(of(vec![]), (vec![0, 1], false));
    assert_eq!(of(vec![there(7, &[0, 1]), there(7, &[1])]), (vec![0], true));
    // Twice on one server is not on two.
    assert_eq!(of(vec![there(7, &[0, 0, 1]), there(7, &[1])]), (vec![0], true));
    assert_eq!(of(vec![there(7, &[0, 1]), there(7, &[1, 0])]), (vec![], false));
}

#[test]
fn rows_that_a_server_has_twice_are_counted() {
    let compared = compare(
        &chunk(&[(7, 0, 2)]),
        vec![there(7, &[0, 1, 1, 1, 0]), there(7, &[1, 1]), there(9, &[4, 4])],
        1,
    );
    assert_eq!(compared.lacks, [0; 0]);
    assert_eq!(compared.repeated, BTreeMap::from([(7, 3), (9, 1)]));
}

#[test]
fn a_question_is_for_the_span_of_a_chunk() {
    let logs = chunk(&[(7, 5, 3), (9, 0, 2)]);
    let second = 1_000_000_000;
    let span = Span::new(
        Table::Logs,
        &logs,
        &[20_000 * second + 1, 10_000 * second, 30_000 * second],
    );
    assert_eq!(
        span.condition(Table::Logs, "it's"),
        "_millpond_source = 'it\\'s' AND _millpond_sequence BETWEEN 7 AND 9 \
         AND (_millpond_sequence, _millpond_record) BETWEEN (7, 5) AND (9, 1) \
         AND Timestamp BETWEEN toDateTime(10000) AND toDateTime(30001) \
         AND toStartOfFiveMinutes(Timestamp) BETWEEN toDateTime(9100) AND toDateTime(30900)"
    );
    let span = Span::new(Table::Sum, &logs, &[10_000, 30_000]);
    let condition = span.condition(Table::Sum, "s");
    assert!(
        condition.ends_with(" AND TimeUnix BETWEEN toDateTime(10000) AND toDateTime(30001)"),
        "{condition}"
    );
}

#[test]
fn times_that_functions_confuse_restrict_nothing() {
    let logs = chunk(&[(7, 5, 1)]);
    let second = 1_000_000_000;
    let restricts = |ticks: &[i64]| {
        Span::new(Table::Logs, &logs, ticks)
            .condition(Table::Logs, "s")
            .contains("Timestamp")
    };
    assert!(restricts(&[0, 4_291_747_199 * second]));
    for odd in [-1, 4_291_747_200 * second, i64::MIN, i64::MAX] {
        assert!(!restricts(&[second, odd]), "{odd}");
    }
    assert!(!restricts(&[]));
}

/// The embedded engine has no cluster, so this test pins the query.
#[test]
fn all_servers_of_a_cluster_are_asked_one_by_one() {
    let from = ReadFrom::cluster("it's", "otel", "logs");
    assert_eq!(
        from.numbers("x = 1"),
        "SELECT concat(hostName(), ':', toString(tcpPort())) AS server, _millpond_sequence AS sequence, \
         groupArray(_millpond_record) AS records FROM clusterAllReplicas('it\\'s', `otel`, `logs`) WHERE x = 1 \
         GROUP BY server, sequence"
    );
}
