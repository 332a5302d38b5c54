use super::*;

fn replica(path: &str, made: Option<&str>, uuid: &str) -> Kind {
    Kind::Replica {
        path: path.to_owned(),
        made: made.map(str::to_owned),
        uuid: uuid.to_owned(),
    }
}

fn distributed(key: &str, layout: &[&str], behind: &[&str]) -> Kind {
    let arguments = Distributed::parse(&format!("Distributed('main', 'local', 'otel_logs', {key})")).unwrap();
    Kind::Distributed {
        arguments: Box::new(arguments),
        layout: layout.iter().map(|&replica| replica.to_owned()).collect(),
        behind: behind.iter().map(|&table| table.to_owned()).collect(),
    }
}

fn tables(kind: Kind) -> Tables {
    let home = Home {
        kind,
        views: Vec::new(),
    };
    Tables {
        time_zone: "UTC".to_owned(),
        tables: BTreeMap::from([("`otel`.`otel_logs`".to_owned(), home)]),
    }
}

fn differ(ours: Kind, theirs: Kind) -> Option<String> {
    difference("http://a", &tables(ours), "http://b", &tables(theirs))
}

#[test]
fn replicas_share_a_path_that_one_transaction_made() {
    let ours = || replica("/t/1", Some("7"), "u");
    assert_eq!(differ(ours(), replica("/t/1", Some("7"), "v")), None);
    for (theirs, why) in [
        (replica("/t/2", Some("7"), "u"), "its paths in Keeper are"),
        (replica("/t/1", Some("8"), "u"), "in two different Keepers"),
        (
            Kind::Alone {
                engine: "MergeTree".to_owned(),
            },
            "its engines differ",
        ),
    ] {
        let message = differ(ours(), theirs).unwrap();
        assert!(
            message.contains(why) && message.contains("at http://a and http://b"),
            "{message}"
        );
    }
}

#[test]
fn without_keeper_only_an_equal_uuid_proves_the_same_table() {
    for (path, made) in [("/t/1", None), ("", None)] {
        let kind = |uuid| replica(path, made, uuid);
        assert_eq!(differ(kind("u"), kind("u")), None);
        for (ours, theirs) in [("u", "v"), (NIL, NIL)] {
            let message = differ(kind(ours), kind(theirs)).unwrap();
            assert!(message.contains("grant SELECT ON system.zookeeper"), "{message}");
        }
    }
    assert!(differ(replica("/t/1", Some("7"), "u"), replica("/t/1", None, "v")).is_some());
}

#[test]
fn a_row_goes_to_the_same_shard_from_everywhere() {
    let ours = || distributed("cityHash64(TraceId)", &["1 a", "2 b"], &["a/u", "b/v"]);
    assert_eq!(differ(ours(), ours()), None);
    for (theirs, why) in [
        (
            distributed("cityHash64(Body)", &["1 a", "2 b"], &["a/u", "b/v"]),
            "sharding keys",
        ),
        (
            distributed("cityHash64(TraceId)", &["1 b", "2 a"], &["a/u", "b/v"]),
            "different shards",
        ),
        (
            distributed("cityHash64(TraceId)", &["1 a", "2 b"], &["c/w", "d/x"]),
            "different tables behind it",
        ),
    ] {
        let message = differ(ours(), theirs).unwrap();
        assert!(
            message.contains(why) && message.contains("another shard"),
            "{message}"
        );
    }
}

#[test]
fn a_time_zone_decides_on_partitions() {
    let ours = tables(replica("/t/1", Some("7"), "u"));
    let theirs = Tables {
        time_zone: "Asia/Tokyo".to_owned(),
        ..ours.clone()
    };
    let message = difference("http://a", &ours, "http://b", &theirs).unwrap();
    assert!(message.contains("UTC and Asia/Tokyo"), "{message}");
}

#[test]
fn a_table_without_replicas_has_one_address() {
    let merge_tree = Kind::Alone {
        engine: "MergeTree".to_owned(),
    };
    let message = alone("http://a", &tables(merge_tree)).unwrap();
    assert!(message.contains("at http://a has engine MergeTree"), "{message}");
    assert_eq!(alone("http://a", &tables(replica("/t/1", None, "u"))), None);
}

#[test]
fn tables_and_views_that_one_address_lacks_are_found() {
    let ours = tables(replica("/t/1", Some("7"), "u"));
    let mut theirs = ours.clone();
    for home in theirs.tables.values_mut() {
        home.views.push("`otel`.`v`".to_owned());
    }
    assert_eq!(difference("http://a", &ours, "http://b", &theirs), None);
    assert_eq!(views_of_one(&ours, &theirs), ["`otel`.`v`"]);
    assert_eq!(views_of_one(&theirs, &ours), ["`otel`.`v`"]);
    let none = Tables {
        tables: BTreeMap::new(),
        ..ours.clone()
    };
    for (ours, theirs) in [(&ours, &none), (&none, &ours)] {
        let message = difference("http://a", ours, "http://b", theirs).unwrap();
        assert!(
            message.contains("there is no table `otel`.`otel_logs` at http"),
            "{message}"
        );
    }
}
