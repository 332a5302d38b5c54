"""The unmodified clickhouse-connect, with every compression that it shares with the server."""

from __future__ import annotations

import concurrent.futures
import datetime

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError

EVENTS = """CREATE TABLE events (
    id UInt64, time DateTime64(9), name String, service LowCardinality(String),
    attributes Map(LowCardinality(String), String), numbers Array(Int32), score Nullable(Float64)
) ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 100"""

COLUMNS = ["id", "time", "name", "service", "attributes", "numbers", "score"]

EPOCH = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_901)


def some_events(count: int, first: int = 0) -> list[list]:
    return [
        [
            number,
            EPOCH + datetime.timedelta(microseconds=number),
            f"event\n\n{number}\0 ü",
            f"service-{number % 7}",
            {"key": str(number), "": "empty"},
            [-number, 7],
            number / 4 if number % 2 == 0 else None,
        ]
        for number in range(first, first + count)
    ]


def test_typed_rows_go_in_and_come_out(client):
    client.command(EVENTS)
    written = some_events(3000)
    summary = client.insert("events", written, column_names=COLUMNS)
    assert summary.written_rows == 3000
    read = client.query("SELECT * FROM events ORDER BY id", query_tz="UTC")
    assert list(read.column_names) == COLUMNS
    assert [list(row) for row in read.result_rows] == written


def test_nanoseconds_are_kept(client):
    client.command(EVENTS)
    nanoseconds = 1_700_000_000_123_456_789
    insert = "INSERT INTO events (id, time) FORMAT CSV"
    client.raw_insert("events", ["id", "time"], f"1,{nanoseconds}\n".encode(), fmt="CSV")
    client.command(insert, data=f"2,{nanoseconds + 1}\n")
    sql = "SELECT toUnixTimestamp64Nano(time) FROM events ORDER BY id"
    assert client.query(sql).result_columns == [[nanoseconds, nanoseconds + 1]]


def test_parameters_are_values_not_sql(client):
    text = 'it\'s \\ "quoted"; -- {x:String} \n ü'
    sql = "SELECT {text:String}, {number:UInt8}, {list:Array(String)}"
    parameters = {"text": text, "number": 7, "list": ["a'b", "c"]}
    assert client.query(sql, parameters=parameters).result_rows == [(text, 7, ["a'b", "c"])]


def test_parameters_arrive_as_a_form(server):
    client = clickhouse_connect.get_client(
        host=server.host, port=server.port, form_encode_query_params=True
    )
    # Longer than a URL may be; ClickHouse accepts 128 KiB per field.
    long = "x" * 100_000
    read = client.query("SELECT {text:String}", parameters={"text": long})
    assert read.result_rows == [(long,)]


def test_settings_hold_for_one_request(client):
    sql = "SELECT value FROM system.settings WHERE name = 'max_block_size'"
    assert client.command(sql, settings={"max_block_size": 17}) == 17
    assert client.command(sql) != 17


def test_a_token_deduplicates(client):
    client.command(EVENTS)
    for token, rows in [
        ("a", some_events(50)),
        ("a", some_events(50)),
        ("b", some_events(50, first=50)),
        ("a", some_events(10)),
    ]:
        settings = {"insert_deduplicate": 1, "async_insert": 0, "insert_deduplication_token": token}
        client.insert("events", rows, column_names=COLUMNS, settings=settings)
    read = client.query("SELECT count(), uniqExact(id) FROM events")
    assert read.result_rows == [(100, 100)]


def test_exceptions_have_their_code(client):
    for sql, code in [("SELECT * FROM nowhere", 60), ("SELECT throwIf(1)", 395), ("SELEC 1", 62)]:
        with pytest.raises(DatabaseError, match=f"Code: {code}\\.") as caught:
            client.query(sql)
        assert caught.value.code == code


def test_an_exception_in_mid_result_is_an_error(client):
    sql = """SELECT number + throwIf(number = 2000, 'too far') AS n, randomPrintableASCII(1000) AS s
        FROM numbers(3000) SETTINGS max_block_size = 100"""
    with client.query_row_block_stream(sql) as stream, pytest.raises(StreamFailureError) as caught:
        list(stream)
    assert "too far" in str(caught.value)


def test_a_large_result_streams(client):
    with client.query_row_block_stream("SELECT number FROM numbers(200000)") as stream:
        blocks = [(len(block), block[0][0], block[-1][0]) for block in stream]
    expected = 0
    for length, first, last in blocks:
        assert (first, last) == (expected, expected + length - 1)
        expected += length
    assert expected == 200_000


def test_raw_results_have_their_format(client):
    sql = "SELECT number AS n, toString(n) AS s FROM numbers(2)"
    assert client.raw_query(sql, fmt="CSVWithNames") == b'"n","s"\n0,"0"\n1,"1"\n'


def test_clients_at_once(server, database):
    server.query(EVENTS, database=database)

    def work(task: int) -> None:
        client = clickhouse_connect.get_client(
            host=server.host, port=server.port, database=database, dedicated_pool=True
        )
        for number in range(4):
            first = (task * 4 + number) * 100
            client.insert("events", some_events(100, first), column_names=COLUMNS)
            sql = "SELECT count() FROM events WHERE intDiv(id, 100) = {part:UInt64}"
            assert client.command(sql, parameters={"part": first // 100}) == 100
        client.close()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, task) for task in range(8)]:
            done.result()
    sql = "SELECT count(), uniqExact(id) FROM events"
    assert server.query(sql, database=database) == "3200\t3200"
