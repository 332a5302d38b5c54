"""Tables of events."""

import json

from .otlp_http import post

NDJSON = "application/x-ndjson"

# The columns that Millpond fills, as in docs/event-tables.md.
OWN_COLUMNS = """_millpond_received_at DateTime64(6), _millpond_inserted_at DateTime64(3),
    _millpond_source LowCardinality(String), _millpond_sequence UInt64, _millpond_record UInt32"""

_ORDERS = """
[[table]]
stream = "events.order"
table = "orders"
"""

_UNIQUE = """
[[unique]]
stream = "events.order"
key = ["event_id"]
window = "8h"
"""


def orders(site) -> list[object]:
    """Creates the table of events, and returns the flags for it and for the deduplication."""
    site.clickhouse.query(f"CREATE DATABASE {site.database}")
    site.clickhouse.query(
        f"""CREATE TABLE {site.database}.orders (event_id String, n UInt64, {OWN_COLUMNS})
        ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 10000"""
    )
    tables, unique = (site.directory / name for name in ("tables.toml", "unique.toml"))
    tables.write_text(_ORDERS)
    unique.write_text(_UNIQUE)
    return ["--event-tables", tables, "--unique", unique]


def post_orders(gateway, rows: list[dict]) -> None:
    body = "\n".join(json.dumps(row) for row in rows)
    status, _, answer = post(gateway.http_address, "/v1/streams/events.order", body, NDJSON)
    assert (status, json.loads(answer)) == (200, {"accepted": len(rows)})
