"""The main path without faults: OTLP logs through a gateway, MinIO and a consumer into ClickHouse,
sent by Millpond's load generator, by telemetrygen and through a real Collector."""

from harness.exactly_once import assert_exactly_once, rows_of, wait_for_all
from harness.process import eventually
from harness.services import forward_to, telemetrygen


def test_every_acknowledged_record_is_in_clickhouse_once(site):
    gateway, consumer = site.gateway(), site.consumer()
    load = site.load(gateway, records=20_000)
    load.run()
    acknowledged = load.acknowledged()
    assert len(acknowledged) == 20_000
    wait_for_all(acknowledged, site.clickhouse, site.database, gateway, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(acknowledged, site.clickhouse, site.database)
    assert rows_of(site.clickhouse, site.database) == 20_000


def test_telemetrygen_and_a_collector_in_front(site):
    gateway, consumer = site.gateway(), site.consumer()
    collector = site.collector("otlp_grpc", forward_to(gateway.address))
    for name, address in (("direct", gateway.address), ("forwarded", collector.address)):
        telemetrygen(
            site.directory,
            address,
            *("--logs", 5_000, "--workers", 2),
            *("--telemetry-attributes", f'run="{name}"'),
            name=f"telemetrygen-{name}",
        )
    load = site.add(site.load(collector, records=5_000))
    load.run()
    acknowledged = load.acknowledged()
    assert len(acknowledged) == 5_000
    wait_for_all(acknowledged, site.clickhouse, site.database, gateway, consumer, collector)

    def of_run(name: str) -> int:
        where = f"WHERE LogAttributes['run'] = '{name}'"
        return int(site.clickhouse.scalar(f"SELECT count() FROM {site.database}.otel_logs {where}"))

    for name in ("direct", "forwarded"):
        eventually(f"the records of run {name}", lambda name=name: of_run(name) >= 10_000)
    assert collector.terminate() == 0
    assert gateway.terminate() == 0
    assert consumer.terminate() == 0
    assert (of_run("direct"), of_run("forwarded")) == (10_000, 10_000)
    assert rows_of(site.clickhouse, site.database) == 25_000


def test_a_consumer_started_late_reads_from_the_beginning(site):
    gateway = site.gateway()
    load = site.load(gateway, records=3_000)
    load.run()
    assert gateway.terminate() == 0
    consumer = site.consumer()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    assert consumer.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)


def test_admin_ports_answer(site):
    gateway, consumer = site.gateway(), site.consumer()
    for process in (gateway, consumer):
        assert process.alive()
        assert "millpond_store_requests_total" in process.metrics()
