"""Rows by their identities: a ClickHouse that knows a token but lacks its rows, and the reaction of
`millpond doctor --rows` and `millpond consumer repair` to deleted and duplicated rows."""

import shutil
import signal
import subprocess
from collections import Counter

import pytest

from harness.corpus import record, request
from harness.otlp import export
from harness.process import Process, eventually
from harness.services import Buffer

CONSUMER = ("--ack-interval", "50ms", "--gc-interval", "0s", "--signals", "logs")
# The engine of the tests cannot end INSERTs: consumers wait for them.
CONSUMER += ("--insert-timeout", "2s")


def _send(gateway, *bodies: str) -> None:
    made = request(*(record(body, body=body) for body in bodies))
    export(gateway.address, made.SerializeToString())


def _bodies(site) -> Counter[str]:
    return Counter(site.clickhouse.lines(f"SELECT Body FROM {site.database}.otel_logs"))


def _table(site) -> tuple[str, ...]:
    place = ("--clickhouse", site.clickhouse.url, "--database", site.database)
    return (*place, "--signals", "logs", "--insert-timeout", "2s")


def _delete(site, condition: str) -> None:
    table = f"{site.database}.otel_logs"
    site.clickhouse.query(f"ALTER TABLE {table} DELETE WHERE {condition}", mutations_sync=1)


def _compared(site, *flags: object, code: int = 0) -> tuple[dict, list[str]]:
    """The result of `doctor --rows` for the one stream, and its errors."""
    process = site.millpond("doctor", "--rows", *_table(site), *flags, "--json", code=code)
    answer = site.parsed(process)
    [compared] = answer["rows"]
    return compared, [f["what"] for f in answer["findings"] if f["severity"] == "error"]


def _sent(site, requests: int = 5, records: int = 20, *flags: object):
    """Sends this many requests, each in a separate segment; returns the consumer."""
    site.buffer = Buffer((site.directory / "buffer").as_uri())
    gateway = site.gateway("--linger", "1ms")
    consumer = site.consumer(*CONSUMER, *flags)
    bodies = [[f"{n}-{m}" for m in range(records)] for n in range(requests)]
    for made in bodies:
        _send(gateway, *made)
    site.millpond("consumer", "wait", "e2e", "--timeout", "60s")
    everything = Counter(body for made in bodies for body in made)
    eventually("all rows", lambda: _bodies(site) == everything)
    return consumer, gateway, everything


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not there")
def test_a_server_killed_between_a_token_and_its_rows_loses_nothing(own_site):
    """The server writes a token, and dies before it renames the part."""
    site = own_site
    gateway, consumer = site.gateway("--linger", "20ms"), site.consumer(*CONSUMER)
    _send(gateway, "first")
    eventually("the first row", lambda: _bodies(site) == Counter(["first"]))
    strace = Process(
        "strace",
        [
            *("strace", "-f", "-qq", "-o", site.directory / "strace.txt"),
            *("-p", site.clickhouse.pid, "-e", "trace=rename"),
            *("-e", "inject=rename:error=EIO:signal=KILL:when=1"),
        ],
        site.directory,
    )
    site.add(strace).start()
    status = f"/proc/{site.clickhouse.pid}/status"
    traced = ("sed", "-n", "s/TracerPid:\\s*//p", status)
    eventually("strace to attach", lambda: int(subprocess.check_output(traced)) > 0)
    expected = [f"second {n}" for n in range(100)]
    _send(gateway, *expected)
    assert site.clickhouse.wait() == -signal.SIGKILL
    strace.wait()
    site.clickhouse.up()
    _send(gateway, "third")
    everything = Counter(["first", *expected, "third"])
    eventually("all rows", lambda: _bodies(site) == everything)
    site.millpond("consumer", "wait", "e2e", "--timeout", "60s")
    assert consumer.terminate() == 0
    assert _bodies(site) == everything
    compared, errors = _compared(site)
    assert (compared["records"], compared["missing"], errors) == (102, 0, [])


def test_a_reset_inserts_what_is_missing_and_asks_before_that(site):
    consumer, gateway, everything = _sent(site)
    assert consumer.terminate() == 0
    _delete(site, "Body LIKE '%-7'")
    output = site.millpond("consumer", "reset", "e2e", "--to", "earliest", code=1).messages()
    assert "--yes" in output
    site.millpond("consumer", "reset", "e2e", "--to", "earliest", "--yes")
    again = site.consumer(*CONSUMER, name="consumer-again")
    eventually("all rows", lambda: _bodies(site) == everything)
    site.millpond("consumer", "wait", "e2e", "--timeout", "60s")
    assert again.terminate() == 0
    assert _bodies(site) == everything
    assert gateway.terminate() == 0


def test_deleted_and_doubled_rows_are_found_and_deleted_ones_come_back_once(site):
    consumer, _, everything = _sent(site)
    compared, errors = _compared(site)
    assert (compared["records"], compared["rows"], errors) == (100, 100, [])
    assert (compared["segments_read"], compared["sequences"]) == (0, [])

    # Sequences and records match the requests, one per segment.
    _delete(site, "Body IN ('1-3', '1-4', '3-0', '4-1')")
    table = f"{site.database}.otel_logs"
    site.clickhouse.query(f"INSERT INTO {table} SELECT * FROM {table} WHERE Body = '2-5'")
    site.clickhouse.query(
        f"INSERT INTO {table} SELECT * REPLACE (99 AS _millpond_record, 'who' AS Body)"
        f" FROM (SELECT * FROM {table} WHERE Body = '4-0')"
    )
    # Sequence 4 has as many rows as records: one row has no record, and one record has no row.
    compared, errors = _compared(site, code=1)
    assert (compared["missing"], compared["duplicate"], compared["unknown"]) == (4, 1, 1)
    assert compared["segments_read"] == 4
    found = {difference.pop("sequence"): difference for difference in compared["sequences"]}
    nothing = {"missing": [], "duplicate": [], "unknown": []}
    assert found == {
        1: {**nothing, "missing": [[3, 4]]},
        2: {**nothing, "duplicate": [[5, 5]]},
        3: {**nothing, "missing": [[0, 0]]},
        4: {**nothing, "missing": [[1, 1]], "unknown": [[99, 99]]},
    }
    assert len(errors) == 3
    text = site.millpond("doctor", "--rows", *_table(site), code=1).stdout()
    advice = "millpond consumer repair e2e --shard 0 --stream otlp.logs --from 1 --to 4"
    assert advice in text
    assert "sequence 1 records 3 to 4; sequence 3 records 0; sequence 4 records 1" in text
    compared, _ = _compared(site, "--from", 4, "--to", 4, "--consumer", "e2e", code=1)
    assert (compared["records"], compared["missing"], compared["unknown"]) == (20, 1, 1)

    repair = advice.split()[1:]
    done = site.answer(*repair, *_table(site))
    expected = {"rows_asked_for": 80, "rows_found": 76, "rows_inserted": 4, "dead_letters": 0}
    assert done == {"complete": True, **expected}
    done = site.answer(*repair, *_table(site))
    assert (done["rows_found"], done["rows_inserted"]) == (80, 0)
    assert _bodies(site) == everything + Counter(["2-5", "who"])
    # The cursor of the repair is no consumer anymore.
    [listed] = site.answer("consumer", "list")["consumers"]
    assert listed["consumer"] == "e2e"
    consumer.must_run()
    assert consumer.terminate() == 0


def test_rows_that_need_not_be_there_are_not_missed(site):
    consumer, gateway, everything = _sent(site)
    table = f"{site.database}.otel_logs"
    site.clickhouse.query(f"ALTER TABLE {table} ADD CONSTRAINT tidy CHECK Body != 'bad'")
    _send(gateway, "good", "bad")
    site.millpond("consumer", "wait", "e2e", "--timeout", "60s")
    compared, errors = _compared(site)
    assert (compared["records"], compared["rows"], errors) == (102, 101, [])
    assert compared["segments_read"] == 1
    done = site.answer(
        *("consumer", "repair", "e2e", "--from", "earliest", "--to", "latest"), *_table(site)
    )
    assert (done["rows_inserted"], done["dead_letters"]) == (0, 1)
    assert len(site.answer("dead-letters", "list")["letters"]) == 1
    assert consumer.terminate() == 0
    assert _bodies(site) == everything + Counter(["good"])


def test_a_repair_that_is_killed_goes_on(site):
    consumer, _, everything = _sent(site, 40, 50)
    _delete(site, "1")
    repair = ("consumer", "repair", "e2e", "--from", 0, "--to", 39, *_table(site))
    running = site.begun(*repair, *site.buffer.flags)
    eventually("some rows", lambda: _bodies(site) or not running.running())
    running.kill()
    # Its lease expires first.
    done = site.answer(*repair)
    assert done["complete"]
    assert _bodies(site) == everything
    assert consumer.terminate() == 0


def test_rows_that_cannot_be_repaired_are_named(site):
    consumer, _, _ = _sent(site, 2)
    for words, output in (
        (("e2e", "--from", 0, "--to", 2), "is not in the log"),
        (("e2e", "--from", 1, "--to", 0), "is after"),
        (("other", "--from", 0, "--to", 1), "there is nothing to repair"),
        (("e2e.repair", "--from", 0, "--to", 1), "belong to repairs"),
        (("e2e", "--from", 0, "--to", 1, "--columns", "none"), "--columns none"),
    ):
        process = site.millpond("consumer", "repair", *words, *_table(site), code=1)
        assert output in process.messages()
    output = site.millpond("consumer", "reset", "e2e.repair", "--to", "latest", "--yes", code=1)
    assert "belong to repairs" in output.messages()
    assert consumer.terminate() == 0


def test_a_reset_without_identities_asks_for_more(site):
    consumer, _, _ = _sent(site, 2, 20, "--columns", "none")
    assert consumer.terminate() == 0
    reset = ("consumer", "reset", "e2e", "--to", "earliest", "--yes")
    output = site.millpond(*reset, code=1).messages()
    assert "--may-duplicate" in output
    site.millpond(*reset, "--may-duplicate")
    flags = (*_table(site), "--columns", "none", "--rows")
    output = site.millpond("doctor", *flags, code=1).stdout()
    assert "they cannot be compared with the buffer" in output
    assert "only while ClickHouse remembers its token" in output
