"""A Kafka broker, its consumer groups' lag, and settings of the Collector's Kafka components."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import uuid
from pathlib import Path

import pytest

from .process import PATIENCE, free_port
from .services import Buffer, Millpond, Service, tool, with_defaults

# A row of `kafka-consumer-groups --describe`: group, topic, partition, committed offset, end, lag.
_ROW = re.compile(r"^(\S+) +(\S+) +(\d+) +(-|\d+) +(-|\d+) +(-|\d+) ", re.MULTILINE)


needs_kafka = pytest.mark.skipif(
    "MILLPOND_KAFKA" not in os.environ,
    reason="NOT TESTED: scripts/tools.sh kafka, which needs Java 17 and Maven, was not run",
)


def _java(*command: object) -> list[object]:
    """The command for a Java program of Kafka's."""
    # Short-lived programs on few cores: no optimising compiler, no collector's threads.
    flags = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    return ["java", *flags, "-cp", f"{tool('MILLPOND_KAFKA')}/*", *command]


def _run(*command: object, text: str | None = None) -> str:
    """Runs a Java program of Kafka's to its end, with this text as its input."""
    done = subprocess.run(
        [str(word) for word in _java(*command)],
        input=text,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout} {done.stderr}"
    return done.stdout


def produce_lines(address: str, topic: str, lines: list[str], settings: dict[str, str]) -> None:
    """Sends each line as a record with Kafka's console producer."""
    properties = [f"--command-property={key}={value}" for key, value in settings.items()]
    _run(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", address, "--topic", topic, *properties),
        text="\n".join(lines) + "\n",
    )


class Kafka(Service):
    """A broker that is also the controller, or one `beside` it; it creates topics as they are used.
    `other` settings have underscores for dots. Its second address takes these `users`, with their
    passwords, over SASL/PLAIN."""

    def __init__(
        self,
        directory: Path,
        name: str = "kafka",
        beside: Kafka | None = None,
        users: dict[str, str] | None = None,
        **other: object,
    ) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.node = beside.node + 1 if beside else 1
        self._controller = beside._controller if beside else f"127.0.0.1:{free_port()}"
        self._cluster = beside._cluster if beside else uuid.uuid4()
        self.secure_address = f"127.0.0.1:{free_port()}"
        listeners = f"PLAINTEXT://{self.address},SECURE://{self.secure_address}"
        accounts = " ".join(f'user_{user}="{word}"' for user, word in (users or {}).items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        if not beside:
            listeners += f",CONTROLLER://{self._controller}"
        self._data = directory / f"{name}-data"
        self._role = "--no-initial-controllers" if beside else "--standalone"
        settings = {
            "process.roles": "broker" if beside else "broker,controller",
            "node.id": self.node,
            "controller.quorum.bootstrap.servers": self._controller,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_PLAINTEXT"
            ),
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f"{module} required {accounts};",
            "log.dirs": self._data,
            "num.partitions": 3,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            # A group's first member need not wait for others.
            "group.initial.rebalance.delay.ms": 0,
            # A busy machine must neither fence the only broker nor end its start.
            "broker.session.timeout.ms": 300_000,
            "initial.broker.registration.timeout.ms": 300_000,
            "controller.quorum.request.timeout.ms": 60_000,
            **{key.replace("_", "."): value for key, value in other.items()},
        }
        self._settings = directory / f"{name}.properties"
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        super().__init__(name, _java("kafka.Kafka", self._settings), directory)

    def format(self) -> Kafka:
        """Prepares the data directory of a new broker."""
        flags = (self._role, "-t", self._cluster, "-c", self._settings)
        _run("kafka.tools.StorageTool", "format", *flags)
        return self

    def until_ready(self, timeout: float = 4 * PATIENCE) -> Service:
        # Its start takes seconds of processor time, for which a busy machine needs minutes.
        return super().until_ready(timeout)

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True

    def segment(self, topic: str, partition: int) -> Path:
        """The file with a partition's first records."""
        return self._data / f"{topic}-{partition}" / f"{0:020}.log"

    def lag(self, group: str) -> int:
        """The messages that a consumer group has not read, over all partitions. A group that has
        committed no offset in a partition has read nothing there."""
        output = _run(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            *("--bootstrap-server", self.address, "--describe", "--group", group),
        )
        total = 0
        rows = _ROW.findall(output)
        assert rows, f"{group} has read no topic: {output}"
        for _, _, _, committed, end, lag in rows:
            total += int(end if committed == "-" else lag)
        return total


class Bridge(Millpond):
    """`millpond bridge kafka`."""

    def __init__(
        self,
        directory: Path,
        buffer: Buffer,
        kafka: Kafka,
        topics: str,
        *flags: object,
        name: str = "bridge",
    ) -> None:
        defaults = {"--brokers": kafka.address, "--linger": "100ms", "--session-timeout": "6s"}
        super().__init__(
            name,
            [
                *("bridge", "kafka", *buffer.flags, "--create-bucket"),
                *("--topics", topics, *with_defaults(flags, defaults)),
            ],
            directory,
        )


def write_to(kafka: Kafka) -> dict:
    """Settings of the Kafka exporter under which it repeats no message: an idempotent producer, and
    a time limit that only a broken broker exceeds."""
    return {
        "brokers": [kafka.address],
        "timeout": "300s",
        "producer": {"required_acks": "all"},
        "sending_queue": {
            "enabled": True,
            "block_on_overflow": True,
            # A reader without a queue makes an INSERT of each message.
            "batch": {"flush_timeout": "200ms", "sizer": "items", "min_size": 1_000},
        },
    }


def read_from(kafka: Kafka, group: str) -> dict:
    """Settings of the Kafka receiver: an offset is committed once the pipeline has the message."""
    return {
        "brokers": [kafka.address],
        "group_id": group,
        # The topic appears after the receiver has joined.
        "initial_offset": "earliest",
        # A loaded machine must not cost a member its partitions: a rebalance repeats messages.
        "session_timeout": "60s",
        "message_marking": {"after": True},
        "error_backoff": {"enabled": True, "max_elapsed_time": "0s"},
    }
