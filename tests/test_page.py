"""The status page in a real browser, for a working gateway and consumer."""

import json
import re

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


def test_the_page_shows_the_pipeline_at_work(own_site):
    site = own_site
    gateway = site.gateway()
    consumer = site.consumer()
    load = site.load(gateway, "--rate", 1_000, records=1_000_000)
    load.start()

    seen = _look(site, gateway, r"records in\s+[1-9][\d,]*/s")
    assert seen["title"] == "Millpond gateway"
    for stage in ("clients", "gateway", "encode", "upload", "commit", "bucket"):
        assert re.search(stage, seen["text"], re.IGNORECASE), stage
    assert "ready" in seen["text"]
    assert site.buffer.url in seen["text"]

    seen = _look(site, consumer, r"records out\s+[1-9][\d,]*/s[^]*otlp\.logs")
    assert seen["title"] == "Millpond consumer"
    for stage in ("bucket", "fetch", "decode", "write", "clickhouse"):
        assert re.search(stage, seen["text"], re.IGNORECASE), stage
    assert re.search(r"p99 from gateway to table\s+[\d.]+ (ms|s|min)", seen["text"])

    site.clickhouse.kill()
    eventually("the wait to be reported", lambda: not consumer.ready())
    # The first reason may be an interrupted INSERT; then it becomes this one.
    refused = r"waiting[^]*writing to the sink[^]*Connection refused[^]*WARN"
    _look(site, consumer, refused)
    load.kill()
