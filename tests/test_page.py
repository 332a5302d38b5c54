"""The status page in a real browser, for a working gateway and consumer."""

import json
import re
import urllib.request

from harness.events import NDJSON, orders, post_orders
from harness.otlp_http import post
from harness.process import Process, eventually
from harness.services import REPOSITORY, tool


def _look(site, of, until: str) -> dict:
    """The browser's view of the page once its text matches `until`."""
    name = f"browser-{of.name}"
    screenshot = site.directory / f"{name}.png"
    script = REPOSITORY / "tests" / "browser" / "look.mjs"
    url = f"http://{of.admin}/"
    browser = site.add(
        Process(
            name,
            ["node", script, url, until, screenshot],
            site.directory,
            {"MILLPOND_BROWSER": tool("MILLPOND_BROWSER"), "TMPDIR": str(site.directory)},
        )
    )
    browser.start()
    assert browser.wait(120) == 0, browser.messages()
    seen = json.loads(browser.stdout())
    assert seen["found"], f"no {until!r} in: {seen['text']}"
    assert seen["errors"] == []
    assert screenshot.stat().st_size > 10_000
    # All requests go to the page's own server.
    assert all(request.startswith(url) for request in seen["requests"]), seen["requests"]
    return seen


def _charts(of) -> list[str]:
    """The titles of the charts that the process keeps."""
    with urllib.request.urlopen(f"http://{of.admin}/history.json", timeout=10) as answer:
        return [chart["title"] for chart in json.load(answer)["charts"]]


def test_the_page_shows_who_leads(own_site):
    site = own_site
    peers = ("--peer-listen", "127.0.0.1:0")
    leader, follower = (site.gateway(*peers, name=f"gateway-{number}") for number in range(2))
    site.load(leader, name="first", records=100).run()
    load = site.load(follower, "--rate", 1_000, records=1_000_000)
    load.start()
    _look(site, follower, r"follows: [1-9][\d.]* [kKM]?i?B/s through the leader")
    _look(site, leader, r"leads: [1-9][\d,]* commits for others so far")
    load.kill()


def test_the_page_shows_rows_that_reach_no_table(site):
    gateway, consumer = site.gateway(), site.consumer(*orders(site))
    post_orders(gateway, [{"event_id": f"e{n % 1000}", "n": n} for n in range(2_234)])
    at = "/v1/streams/events.order"
    numbering = {"Millpond-Producer": "shop", "Millpond-Number": "1"}
    for _ in range(3):
        status, _, answer = post(gateway.http_address, at, '{"n": 1}', NDJSON, numbering)
        assert status == 200, answer
    status, _, answer = post(gateway.http_address, at, "{}\nnot JSON", NDJSON)
    assert (status, json.loads(answer)["accepted"]) == (200, 1), answer
    _look(site, gateway, r"1 rows refused so far[^]*2 numbered requests repeated so far")
    _look(site, consumer, r"dropped so far[^]*events\.order[^]*1,234 duplicates")


def test_the_page_shows_the_pipeline_at_work(own_site):
    site = own_site
    gateway = site.gateway()
    consumer = site.consumer()
    load = site.load(gateway, "--rate", 1_000, records=1_000_000)
    load.start()

    # The chart, with its range, needs two samples of the process.
    charted = r"\s+[1-9][\d,]*/s\s+10 min ago\s+max [1-9][\d,]*/s"
    seen = _look(site, gateway, rf"records in{charted}")
    assert seen["title"] == "Millpond gateway"
    for stage in ("clients", "gateway", "encode", "upload", "commit", "bucket"):
        assert re.search(stage, seen["text"], re.IGNORECASE), stage
    assert "ready" in seen["text"]
    assert site.buffer.url in seen["text"]

    assert _charts(gateway) == ["records in", "p99 of a request", "stored", "memory held"]

    seen = _look(site, consumer, rf"records out{charted}[^]*otlp\.logs")
    assert seen["title"] == "Millpond consumer"
    for stage in ("bucket", "fetch", "decode", "write", "clickhouse"):
        assert re.search(stage, seen["text"], re.IGNORECASE), stage
    assert re.search(r"p99 from gateway to table\s+[\d.]+ (ms|s|min)", seen["text"])
    wanted = ["records out", "p99 from gateway to table", "behind by", "backlog"]
    assert _charts(consumer) == wanted

    site.clickhouse.kill()
    eventually("the wait to be reported", lambda: not consumer.ready())
    # The first reason may be an interrupted INSERT; then it becomes this one.
    refused = r"waiting[^]*writing to the sink[^]*Connection refused[^]*WARN"
    _look(site, consumer, refused)
    load.kill()
