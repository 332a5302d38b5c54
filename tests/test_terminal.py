"""What people see on a terminal, and scripts in a pipe: progress, colours, helps, completions."""

import os
import pty
import re
import subprocess
import threading
from datetime import UTC, datetime, timedelta

import pytest

from harness.corpus import record, request
from harness.otlp import export
from harness.process import eventually
from harness.services import CREDENTIALS, REPOSITORY, Buffer, program


@pytest.fixture(scope="module")
def served(module_site):
    """A gateway on a buffer with records that no consumer has read."""
    site = module_site
    site.buffer = Buffer((site.directory / "buffer").as_uri())
    gateway = site.gateway("--linger", "20ms")
    site.load(gateway, records=1_000).run()
    return site, gateway


def _on_a_terminal(*argv: object, environment: dict | None = None) -> tuple[int, str, str]:
    """The exit code, the output and the messages of a command whose two streams are terminals."""
    streams = [pty.openpty(), pty.openpty()]
    texts = ["", ""]

    def read(place: int) -> None:
        pieces = []
        while True:
            try:
                piece = os.read(streams[place][0], 65_536)
            except OSError:
                break
            if not piece:
                break
            pieces.append(piece)
        texts[place] = b"".join(pieces).decode()

    command = subprocess.Popen(
        [str(program("millpond")), *(str(word) for word in argv)],
        stdin=subprocess.DEVNULL,
        stdout=streams[0][1],
        stderr=streams[1][1],
        env={**CREDENTIALS, "PATH": os.environ["PATH"], "TERM": "xterm", **(environment or {})},
    )
    for _, theirs in streams:
        os.close(theirs)
    readers = [threading.Thread(target=read, args=(place,)) for place in (0, 1)]
    for reader in readers:
        reader.start()
    code = command.wait(timeout=120)
    for reader in readers:
        reader.join()
    for ours, _ in streams:
        os.close(ours)
    return code, *texts


def _load(gateway) -> tuple[object, ...]:
    return ("load", "--endpoint", gateway.address, "--rate", 1_000, "--records", 1_000)


def test_progress_is_for_terminals_alone(served):
    site, gateway = served
    code, _, text = _on_a_terminal(*_load(gateway))
    assert code == 0
    assert "/1,000 records acknowledged" in text
    piped = subprocess.run(
        [str(program("millpond")), *(str(word) for word in _load(gateway))],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "records acknowledged" not in piped.stderr
    assert "\x1b" not in piped.stdout + piped.stderr


def test_a_wait_shows_what_it_waits_for(served):
    site, _ = served
    code, _, text = _on_a_terminal(
        "consumer", "wait", "nobody", "--timeout", "1s", *site.buffer.flags
    )
    assert code == 1
    assert "millpond: consumer nobody has never run: waiting for it" in text
    assert "0/" in text
    assert "records" in text


@pytest.fixture(scope="module")
def consumed(new_site):
    """A buffer with a record that the consumer has inserted, and one that the table has refused."""
    site = new_site()
    gateway = site.gateway("--linger", "20ms")
    consumer = site.consumer("--ack-interval", "50ms")
    eventually("the consumer to own its cursor", consumer.owns)
    site.clickhouse.query(
        f"ALTER TABLE {site.database}.otel_logs ADD CONSTRAINT tidy CHECK Body != 'bad'"
    )
    made = request(record("one", body="good"), record("two", body="bad"))
    export(gateway.address, made.SerializeToString())
    site.millpond("consumer", "wait", "e2e")
    assert consumer.terminate() == 0
    return site


_REPAIR = ("consumer", "repair", "e2e", "--from", "earliest", "--to", "latest")


@pytest.mark.parametrize(
    ("command", "code", "unit"),
    [
        (_REPAIR, 0, "records"),
        # The table still refuses it.
        (("dead-letters", "replay", "--all"), 1, "dead letters"),
    ],
)
def test_work_on_a_table_shows_progress_on_a_terminal_alone(consumed, command, code, unit):
    _expect_progress(consumed, *command, *_table(consumed), code=code, unit=unit)


def test_garbage_collection_shows_progress_on_a_terminal_alone(served):
    _expect_progress(served[0], "gc", code=0, unit="objects deleted")


def _expect_progress(site, *command: object, code: int, unit: str) -> None:
    ended, _, said = _on_a_terminal(*command, *site.buffer.flags)
    assert ended == code, said
    # A number of how many, and the unit.
    assert re.search(rf"\d/\d+ {unit}", said), said
    piped = site.millpond(*command, code=code)
    # Without the command line, which precedes the messages of each start.
    own = piped.messages().rsplit("--- ", 1)[1].split("\n", 1)[1]
    assert unit not in own
    assert "\x1b" not in piped.stdout() + own


def test_a_repair_of_a_stream_that_matches_nothing_is_refused(consumed):
    for stream in ("otlp.lgs", "acme.*"):
        said = consumed.millpond(*_REPAIR, *_table(consumed), "--stream", stream, code=1).messages()
        assert f"consumer e2e has read no stream that matches {stream}: " in said


def _table(site) -> tuple[object, ...]:
    return ("--clickhouse", site.clickhouse.url, "--database", site.database)


def test_colours_mark_severities_on_a_terminal_without_no_color(served):
    site, _ = served
    doctor = ("doctor", "--read-only", *site.buffer.flags)
    _, out, _ = _on_a_terminal(*doctor)
    assert "\x1b[32m     ok\x1b[0m  buffer " in out
    assert "\x1b[33mwarning\x1b[0m  shard 0000: no consumer has ever read it" in out
    _, out, _ = _on_a_terminal(*doctor, environment={"NO_COLOR": "1"})
    assert "     ok  buffer " in out
    assert "\x1b" not in out


def test_a_stream_that_matches_nothing_is_reported(served):
    site, _ = served
    text = site.millpond("tail", "--stream", "otlp.lgs", "--no-follow", code=1).messages()
    assert "there is no stream otlp.lgs: `millpond status` lists the streams" in text


def test_a_time_has_one_form_everywhere(served):
    site, gateway = served
    earlier = datetime.now(UTC) - timedelta(hours=1)
    for at in ("1h", f"{earlier:%Y-%m-%dT%H:%MZ}", f"{earlier:%Y-%m-%d}"):
        tail = site.millpond("tail", "--from", at, "--no-follow", "--grep", "nothing like it")
        assert tail.stdout() == ""
        site.millpond("cost", "--since", at)
    site.command(*_load(gateway)[:3], "--duration", "1s 500ms", "--rate", 100)
    text = site.millpond("tail", "--from", "yesterday", code=2).messages()
    assert "write 5m for five minutes ago, or 2026-11-22T10:00Z" in text


def test_one_consumer_can_be_examined(served):
    site, _ = served
    text = site.millpond("doctor", "--read-only", "--consumer", "nobody", code=1).stdout()
    assert "consumer nobody has never read this buffer" in text


def _plain(*argv: object, code: int = 0) -> str:
    done = subprocess.run(
        [str(program("millpond")), *(str(word) for word in argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.mark.parametrize("command", ["gateway", "consume", "status", "gc", "doctor"])
def test_a_help_ends_with_what_commands_share_and_examples(command):
    text = _plain(command, "--help")
    headings = [line for line in text.splitlines() if line.endswith(":") and line[:1].isalpha()]
    assert headings[-3:] == ["Buffer:", "Global options:", "Examples:"]
    examples = text.split("Examples:\n")[1].rstrip().splitlines()
    assert examples[0].startswith(f"  millpond {command} ")
    # They can be copied from a terminal of 80 columns.
    assert max(len(line) for line in examples) <= 80


def test_the_help_computes_a_tokens_digest_as_printed(new_site):
    site = new_site()
    [line] = [line for line in _plain("gateway", "--help").splitlines() if "sha256sum" in line]
    token = "agents-0123456789abcdef0123456789abcdef"
    digest = subprocess.run(
        ["sh", "-c", line.strip()],
        env={"TOKEN": token, "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()
    tokens = site.directory / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "agents"\nsha256 = "{digest}"\n')
    gateway = site.gateway("--tokens", tokens)
    site.command("load", "--endpoint", gateway.address, "--records", 10, "--token", token)


def test_completions_are_scripts_of_their_shells(tmp_path):
    bash = tmp_path / "millpond.bash"
    bash.write_text(_plain("completions", "bash"))
    ask = (
        f"source {bash}; COMP_WORDS=(millpond dead-l); COMP_CWORD=1; "
        "_millpond millpond dead-l millpond; echo $COMPREPLY"
    )
    done = subprocess.run(
        ["bash", "-c", ask], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stdout == "dead-letters\n"
    for shell in ("zsh", "fish", "elvish", "powershell"):
        assert "dead-letters" in _plain("completions", shell)


def test_there_is_a_man_page_for_each_command(tmp_path):
    _plain("man", tmp_path / "man1")
    pages = {page.name for page in (tmp_path / "man1").iterdir()}
    assert {"millpond.1", "millpond-gateway.1", "millpond-dead-letters-replay.1"} <= pages
    page = (tmp_path / "man1" / "millpond-gateway.1").read_text()
    assert ".TH" in page
    assert "linger" in page


def test_a_quiet_build_prints_its_log_only_if_it_fails(tmp_path):
    def build(script: str) -> tuple[int, str]:
        log = tmp_path / "logs" / "build.log"
        done = subprocess.run(
            [REPOSITORY / "scripts/quietly.sh", "building x", log, "bash", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert "a detail" in log.read_text()
        return done.returncode, done.stdout

    code, text = build("echo a detail")
    assert (code, "a detail" in text) == (0, False)
    assert "building x: done in 0 min" in text
    code, text = build("echo a detail; exit 3")
    assert (code, "a detail" in text) == (3, True)
    assert "building x: failed after 0 min" in text
