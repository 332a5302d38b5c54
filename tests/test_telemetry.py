"""Optional OTLP export of the gateways' and consumers' own metrics, as in /metrics."""

import json
import socket
from pathlib import Path

import pytest

from harness.exactly_once import wait_for_all
from harness.process import eventually
from harness.services import Collector
from harness.telemetry import Pushed, comparable, help_texts, samples, scraped

SERVICES = {"gateway": "millpond-gateway", "consumer": "millpond-consumer"}


@pytest.fixture
def receiver(site) -> Collector:
    """A Collector, not started, that writes everything it receives to a file."""
    file = {"path": str(site.directory / "pushed.json"), "flush_interval": "50ms"}
    return site.add(Collector(site.directory, "file", file, name="receiver"))


@pytest.fixture
def pushed(site) -> Pushed:
    return Pushed(site.directory / "pushed.json")


def _push_to(receiver: Collector) -> list[object]:
    return ["--otlp-endpoint", f"http://{receiver.http_address}", "--otlp-interval", "100ms"]


def _as_dict(scrape: str) -> dict:
    return comparable(scraped(scrape))


def _total(found: dict, name: str) -> float:
    """The sum over all labels."""
    return sum(value for (key, _), value in found.items() if key == name)


def _own(found: dict) -> dict:
    """The metrics without those that change with every push."""
    return {key: value for key, value in found.items() if "_telemetry_" not in key[0]}


def test_pushed_metrics_equal_those_of_the_endpoint(site, receiver, pushed):
    receiver.up()
    gateway = site.gateway(*_push_to(receiver))
    consumer = site.consumer(*_push_to(receiver))
    load = site.load(gateway, records=1_000)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    eventually(
        "it to be acknowledged",
        lambda: consumer.metric("millpond_consumer_backlog_records") == 0,
    )
    for process in (gateway, consumer):
        service = SERVICES[process.name]
        text = process.metrics()
        before, seen = _as_dict(text), len(pushed.metrics(service))
        # The second push began after the scrape.
        eventually("two pushes", lambda s=service, n=seen: len(pushed.metrics(s)) >= n + 2)
        push = pushed.metrics(service)[seen + 1]
        after = _as_dict(process.metrics())
        values = comparable(samples(push))
        # A first event of a kind adds a series.
        assert before.keys() <= values.keys() <= after.keys()
        for key, value in values.items():
            if "_total" in key[0] or key[0].endswith(("_count", "_sum", "_bucket")):
                assert before.get(key, 0) <= value <= after[key], key
        told = {metric["name"]: metric["description"] for metric in push}
        assert {name: help_texts(text)[name] for name in told} == told

    # The gateway is idle: every metric has one right value until its next look for new shards.
    def agree() -> bool:
        at_rest = _own(_as_dict(gateway.metrics()))
        push = _own(comparable(samples(pushed.metrics("millpond-gateway")[-1])))
        assert push == at_rest
        return _total(at_rest, "millpond_gateway_records_total") == 1_000

    eventually("a push that equals the endpoint", agree)


def test_the_last_push_has_what_the_last_second_did(site, receiver, pushed):
    """With an interval of an hour, only the push at the stop arrives."""
    receiver.up()
    flags = ["--otlp-endpoint", f"http://{receiver.http_address}", "--otlp-interval", "1h"]
    gateway = site.gateway(*flags)
    consumer = site.consumer(*flags, "--instance", "pod-0")
    load = site.load(gateway, records=500)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, consumer)
    assert pushed.metrics("millpond-gateway") == []
    assert gateway.terminate() == 0
    assert consumer.terminate() == 0
    eventually("both pushes", lambda: len(pushed.resources()) == 2)
    (metrics,) = pushed.metrics("millpond-consumer")
    records = samples(metrics)["millpond_consumer_records_total", (("stream", "otlp.logs"),)]
    assert records == 500
    (gateway_is, consumer_is) = pushed.resources()
    assert gateway_is["service.name"] == "millpond-gateway"
    assert gateway_is["service.instance.id"]
    assert consumer_is == {
        "service.name": "millpond-consumer",
        "service.version": gateway_is["service.version"],
        "service.instance.id": "pod-0",
        "millpond.buffer": site.buffer.url,
        "millpond.consumer": "e2e",
    }


def test_the_standard_variables_hold_where_no_flag_does(site, receiver, pushed):
    receiver.up()
    gateway = site.gateway_of("--otlp-interval", "100ms")
    gateway.environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{receiver.http_address}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_METRIC_EXPORT_INTERVAL": "3600000",
        "OTEL_SERVICE_NAME": "edge",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test%20site",
    }
    gateway.up()
    eventually("a push", lambda: pushed.metrics("edge"))
    assert pushed.resources()[0]["deployment.environment.name"] == "test site"
    assert gateway.terminate() == 0


def test_an_unreachable_endpoint_is_logged_once_and_counted(site, receiver, pushed):
    gateway = site.gateway(*_push_to(receiver))

    def failed() -> float:
        labels = (("outcome", "failed"), ("signal", "metrics"))
        return scraped(gateway.metrics())["millpond_telemetry_pushes_total", labels]

    def message(what: str) -> int:
        return gateway.messages().count(what)

    eventually("some pushes to fail", lambda: failed() >= 3)
    load = site.load(gateway, records=500)
    assert load.run()["unacknowledged"] == 0
    assert message("cannot be pushed to") == 1
    receiver.up()
    eventually("a push", lambda: pushed.metrics("millpond-gateway"))
    eventually("the log line", lambda: message("are pushed to") == 2)
    # The values are cumulative: earlier ones are included.
    sent = samples(pushed.metrics("millpond-gateway")[-1])
    assert _total(sent, "millpond_gateway_records_total") == 500
    receiver.kill()
    before = failed()
    eventually("pushes to fail again", lambda: failed() >= before + 3)
    assert message("cannot be pushed to") == 2
    assert gateway.terminate() == 0


def test_an_endpoint_that_never_answers_holds_nothing_up(site):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        gateway = site.gateway_of("--otlp-endpoint", endpoint, "--otlp-interval", "100ms")
        gateway.environment["OTEL_EXPORTER_OTLP_TIMEOUT"] = "3600000"
        gateway.up()
        silent.accept()
        assert site.load(gateway, records=500).run()["unacknowledged"] == 0
        assert gateway.terminate() == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--otlp-endpoint", "collector:4318"], '--otlp-endpoint: "collector:4318" is not'),
        (
            ["--otlp-endpoint", "https://collector", "--otlp-ca", "/nowhere.pem"],
            "cannot read /nowhere.pem, for OTLP export",
        ),
    ],
    ids=["URL", "CA"],
)
def test_unusable_settings_end_the_start(site, flags, message):
    for process in (site.gateway_of(*flags), site.consumer_of(*flags)):
        process.start()
        assert process.wait() == 1
        assert f"millpond: {message}" in process.messages()


def test_a_clusters_variables_for_another_protocol_end_nothing(site):
    gateway = site.gateway_of()
    gateway.environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    gateway.up()
    assert gateway.terminate() == 0
    [message] = [line for line in gateway.messages().splitlines() if "WARN" in line]
    assert "own metrics are not pushed to http://collector:4317" in message
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in message


def test_millpond_observed_by_millpond(site, tmp_path: Path):
    """As in docs/telemetry.md: a consumer, and the gateway itself, push to the gateway; their
    metrics are in the tables that they fill. A token goes along as a header."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[[token]]\nname = "ops"\ntoken = "secret-of-the-operators"\n')
    gateway = site.gateway_of("--tokens", tokens)
    headers = {"MILLPOND_OTLP_HEADERS": "authorization=Bearer%20secret%2Dof-the-operators"}
    flags = ["--otlp-endpoint", f"http://{gateway.http_address}", "--otlp-interval", "200ms"]
    gateway.argv += flags
    gateway.environment |= headers
    gateway.up()
    consumer = site.consumer_of(*flags)
    consumer.environment |= headers
    consumer.up()
    query = (
        f"SELECT DISTINCT ServiceName FROM {site.database}.otel_metrics_sum "
        "WHERE MetricName = 'millpond_store_requests_total' ORDER BY 1"
    )
    both = sorted(SERVICES.values())
    eventually("both to be in the tables", lambda: site.clickhouse.lines(query) == both)
    assert consumer.terminate() == 0
    assert gateway.terminate() == 0
    assert "secret-of" not in gateway.messages() + consumer.messages()


@pytest.mark.parametrize("name", ["gateway", "consumer"])
def test_a_log_in_json_is_an_object_a_line_to_the_end(site, name):
    """The last lines too."""
    flags = ("--log-format", "json")
    gateway = site.gateway(*flags)
    process = gateway if name == "gateway" else site.consumer(*flags)
    assert process.terminate() == 0
    process.argv[process.argv.index("--buffer") + 1] = "s3://bucket-that/is-not-there"
    process.argv = [word for word in process.argv if word != "--create-bucket"]
    process.start()
    assert process.wait() == 1
    lines = [line for line in process.messages().splitlines() if not line.startswith("--- ")]
    objects = [json.loads(line) for line in lines]
    assert len(objects) > 3
    for line in objects:
        assert {"timestamp", "level", "target", "message"} <= line.keys(), line
        assert line["level"] in ("INFO", "WARN", "ERROR")
    assert objects[-1]["level"] == "ERROR"
    assert "bucket-that" in objects[-1]["message"]
