"""The queries in deploy/grafana/ find data: Prometheus' own engine evaluates every query of the
dashboard and the alerting rules on scrapes of a working gateway and consumer. The view in
ClickHouse works too."""

from harness.corpus_metrics import one_of_each
from harness.corpus_metrics import request as metrics_request
from harness.corpus_traces import request as traces_request
from harness.corpus_traces import span
from harness.events import orders, post_orders
from harness.exactly_once import wait_for_all
from harness.grafana import GRAFANA, ask, dashboard_queries, firing, known, names_in
from harness.otlp import METHODS, export
from harness.process import eventually
from harness.services import Buffer

# Queries that find nothing while everything works.
ONLY_IN_TROUBLE = ('outcome=~"transient',)
# tests/test_bridge.py asks these.
BRIDGE = "millpond_bridge_"


def test_every_query_finds_what_it_asks_for(own_site):
    site = own_site
    gateway = site.gateway()
    # A machine under load renews a short lease too late, and the consumer loses its gauges with it.
    consumer = site.consumer(
        *("--gc-interval", "1s", "--gc-grace", "60s", "--lease", "60s"), *orders(site)
    )
    load = site.load(gateway, "--rate", 500, records=1_000_000)
    load.start()
    post_orders(gateway, [{"event_id": f"e{n % 7}", "n": n} for n in range(10)])
    targets = {"gateway": gateway.admin, "consumer": consumer.admin}
    queries = [query for query in dashboard_queries() if BRIDGE not in query]
    assert len(queries) > 40
    # Gauges of a stream or shard appear once the process has seen it.
    wanted = set().union(*map(names_in, queries))

    def all_there() -> bool:
        load.must_run()
        missing = wanted - known(gateway, consumer)
        assert not missing, f"not there yet: {missing}"
        return True

    eventually("every metric of the dashboard", all_there)
    answers = ask(targets, queries)
    load.kill()
    for answer in answers:
        assert "error" not in answer, answer
        if "alert" in answer:
            # No alert fires.
            assert answer["series"] == 0, answer
        elif not any(trouble in answer["query"] for trouble in ONLY_IN_TROUBLE):
            assert answer["series"] > 0, f"nothing is found by {answer['query']}"
    alerts = [answer["query"] for answer in answers if "alert" in answer]
    alerts = [query for query in alerts if BRIDGE not in query]
    assert len(alerts) > 8
    # A silent rule must be able to fire: its metrics exist.
    there = known(gateway, consumer)
    for query in (*queries, *alerts):
        assert names_in(query) <= there, query


def test_an_alert_finds_its_trouble(own_site):
    site = own_site
    gateway = site.gateway()
    consumer = site.consumer("--ack-interval", "50ms")
    eventually("the consumer to own its cursor", consumer.owns)
    assert consumer.terminate() == 0
    standby = site.consumer("--lease", "60s", name="consumer-first")
    eventually("the consumer to own its cursor", standby.owns)
    waiting = site.consumer(name="consumer-second")
    eventually("it to know its shards", waiting.knows_its_shards)
    assert firing({"gateway": gateway.admin, "consumer": waiting.admin}) == {
        "MillpondNobodyConsumes"
    }
    # A working consumer of another name does not hide it.
    other = site.consumer("--share-tables", name="consumer-other", consumer="other")
    eventually("the consumer to own its cursor", other.owns)
    assert firing({"one": waiting.admin, "consumer": other.admin}) == {"MillpondNobodyConsumes"}
    # A missing consumer fires an alert, too.
    assert firing({"gateway": gateway.admin}) == {"MillpondConsumerGone"}


def test_keys_near_their_limit_fire_an_alert(site):
    gateway = site.gateway()
    # A fifth of its 26,214 keys is not free any more.
    consumer = site.consumer(*orders(site), "--unique-memory", "1MiB")
    for keys, expected in ((20_000, set()), (22_000, {"MillpondKeysNearLimit"})):
        for first in range(0, keys, 2_000):
            rows = [{"event_id": f"e{n}", "n": n} for n in range(first, first + 2_000)]
            post_orders(gateway, rows)
        eventually(
            "the keys",
            lambda keys=keys: consumer.metric("millpond_consumer_unique_keys") == keys,
        )
        assert firing({"gateway": gateway.admin, "consumer": consumer.admin}) == expected


def test_a_cursor_that_cannot_be_read_fires_an_alert(site):
    """Over `file://`, where a cursor is a file."""
    folder = site.directory / "buffer"
    site.buffer = Buffer(folder.as_uri())
    gateway = site.gateway()
    consumer = site.consumer("--gc-interval", "1s")
    eventually("the consumer to own its cursor", consumer.owns)
    targets = {"gateway": gateway.admin, "consumer": consumer.admin}
    unreadable = "millpond_gc_unreadable_cursors"
    eventually("a round", lambda: consumer.metric(unreadable) == 0)
    assert not firing(targets)
    damaged = folder / "shards/0000/consumers/other/cursor"
    damaged.parent.mkdir()
    damaged.write_bytes(b"damaged")
    eventually("a round that finds it", lambda: consumer.metric(unreadable) == 1)
    assert firing(targets) == {"MillpondCursorUnreadable"}


def test_the_view_shows_how_late_records_are(site):
    gateway = site.gateway()
    consumer = site.consumer()
    load = site.load(gateway, records=1_000)
    load.run()
    for signal, made in (
        ("traces", traces_request(span("a span"))),
        ("metrics", metrics_request(*one_of_each("a point"))),
    ):
        export(gateway.address, made.SerializeToString(), method=METHODS[signal])
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    site.millpond("consumer", "wait", "e2e")
    view = (GRAFANA / "clickhouse.sql").read_text()
    database = site.database
    view = view.replace("otel.", f"{database}.").replace("'otel'", f"'{database}'")
    site.clickhouse.query(view)
    rows = site.clickhouse.rows(
        "SELECT splitByChar('/', source)[3] AS stream, sum(records) AS n, min(p50_seconds) AS p50"
        f" FROM {database}.millpond_ingest_latency GROUP BY stream ORDER BY stream"
    )
    assert [(row["stream"], int(row["n"])) for row in rows] == [
        ("otlp.logs", 1_000),
        ("otlp.metrics", 5),
        ("otlp.traces", 1),
    ]
    assert all(float(row["p50"]) > 0 for row in rows)
