"""The policies in deploy/iam, each attached to a user of a real MinIO without further rights:
a role can do everything that it needs, and nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from minio import Minio as Client
from minio import MinioAdmin
from minio.credentials import StaticProvider
from minio.error import S3Error

from harness.corpus import record, request
from harness.exactly_once import assert_exactly_once, wait_for_all
from harness.otlp import export
from harness.process import Process, eventually
from harness.services import (
    CREDENTIALS,
    REPOSITORY,
    MillpondCollector,
    append_to,
    free_port,
    program,
)

_POLICIES = REPOSITORY / "deploy" / "iam"


@dataclass
class Roles:
    """Users of the site's store, one for each role, and one for a consumer that also collects."""

    site: object
    bucket: str
    prefix: str
    admin: MinioAdmin

    def policy(self, name: str, consumer: str = "e2e") -> dict:
        """A policy for this test's buffer and that consumer."""
        text = (_POLICIES / f"{name}.json").read_text()
        assert "my-bucket/telemetry/" in text
        text = text.replace("my-bucket/telemetry", f"{self.bucket}/{self.prefix}")
        text = text.replace("my-bucket", self.bucket).replace("/default/", f"/{consumer}/")
        return json.loads(text)

    def user(self, name: str, *policies: str, consumer: str = "e2e") -> dict[str, str]:
        """Creates a user with these policies; returns its credentials as variables."""
        user = f"{self.bucket}-{name}"
        secret = f"secret of {user}"
        self.admin.user_add(user, secret)
        for policy in policies:
            self.admin.policy_add(f"{user}-{policy}", policy=self.policy(policy, consumer))
        self.admin.attach_policy([f"{user}-{policy}" for policy in policies], user=user)
        return {**CREDENTIALS, "AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": secret}

    def started_as(self, process: Process, user: dict[str, str]) -> Process:
        process.environment.update(user)
        return process.up()

    def command(self, user: dict[str, str], *command: object, code: int = 0) -> str:
        """Runs a `millpond` command on the buffer as that user to its end."""
        name = f"{user['AWS_ACCESS_KEY_ID']}-{'-'.join(str(word) for word in command[:2])}"
        argv = [program("millpond"), *command, *self.site.buffer.flags]
        process = self.site.add(Process(name, argv, self.site.directory, user))
        process.start()
        ended = process.wait()
        assert ended == code, f"{name} ended with {ended}: {process.stdout()} {process.messages()}"
        return process.stdout()

    def client(self, user: dict[str, str]) -> Client:
        return Client(
            self.site.store.endpoint.removeprefix("http://"),
            access_key=user["AWS_ACCESS_KEY_ID"],
            secret_key=user["AWS_SECRET_ACCESS_KEY"],
            region=user["AWS_REGION"],
            secure=False,
        )


@pytest.fixture
def roles(site) -> Iterator[Roles]:
    bucket, prefix = site.buffer.url.removeprefix("s3://").split("/", 1)
    root = StaticProvider(CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    endpoint = site.store.endpoint.removeprefix("http://")
    roles = Roles(
        site, bucket, prefix, MinioAdmin(endpoint=endpoint, credentials=root, secure=False)
    )
    roles.client(CREDENTIALS).make_bucket(bucket)
    return roles


def _filled(roles: Roles, consumer_user: dict[str, str], *consumer_flags: object):
    """Sends records through a gateway with pages, one of them refused, as users with the
    policies."""
    site = roles.site
    gateway = site.gateway_of("--tail-max", 3, "--linger", "20ms")
    roles.started_as(gateway, roles.user("gateway", "gateway"))
    consumer = site.consumer_of("--ack-interval", "50ms", *consumer_flags)
    roles.started_as(consumer, consumer_user)
    eventually("the consumer to own its cursor", consumer.owns)
    site.clickhouse.query(
        f"ALTER TABLE {site.database}.otel_logs ADD CONSTRAINT tidy CHECK Body != 'bad'"
    )
    bad = request(record("refused", body="bad")).SerializeToString()
    export(gateway.address, bad)
    load = site.load(gateway, "--concurrency", 4, records=4_000)
    load.run()
    wait_for_all(load.acknowledged(), site.clickhouse, site.database, gateway, consumer)
    assert gateway.metric("millpond_producer_pages_total") > 2
    # It counts after the rest of the chunk is in ClickHouse.
    eventually(
        "the dead letter to be counted",
        lambda: consumer.metric("millpond_consumer_dead_letters_total") == 1,
    )
    return gateway, consumer, load


def test_each_part_works_with_its_policy_and_nothing_else(site, roles):
    consumer_user = roles.user("consumer", "consumer")
    gateway, consumer, load = _filled(roles, consumer_user, "--gc-interval", "0s")
    assert consumer.terminate() == 0
    assert gateway.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)

    operator = roles.user("operator", "operator")
    tailed = roles.command(operator, "tail", "--from", "earliest", "--no-follow", "--json")
    assert len(tailed.splitlines()) == 1 + len(load.acknowledged())
    collector = roles.user("gc", "gc")
    done = json.loads(roles.command(collector, "gc", "--gc-grace", "0s", "--json"))
    assert done["segments"] > 0
    assert done["pages"] > 0
    assert done["unread_sequences"] == 0

    table = ("--clickhouse", site.clickhouse.url, "--database", site.database)
    [letter] = json.loads(roles.command(operator, "dead-letters", "list", "--json"))["letters"]
    found = json.loads(roles.command(operator, "doctor", *table, "--json"))
    assert found["worst"] == "warning", found
    site.clickhouse.query(f"ALTER TABLE {site.database}.otel_logs DROP CONSTRAINT tidy")
    roles.command(operator, "dead-letters", "replay", *table, letter["letter"])
    roles.command(operator, "manifest", "check")
    roles.command(operator, "status")
    roles.command(operator, "consumer", "reset", "e2e", "--to", "latest", "--yes")
    roles.command(operator, "buffer", "shards", "2")
    roles.command(operator, "consumer", "remove", "e2e")
    # After everything is deleted, a consumer with the same rights starts again: a missing object is
    # not a denied one.
    again = site.consumer_of("--gc-interval", "0s", name="consumer-again")
    roles.started_as(again, consumer_user)
    eventually("the consumer to own its cursor", again.owns)
    # The doctor in a pod, with its consumer's rights.
    found = json.loads(roles.command(consumer_user, "doctor", "--read-only", "--json"))
    assert found["worst"] != "error", found


def test_a_consumer_with_its_policy_notices_that_another_one_has_its_tables(site, roles):
    roles.started_as(site.gateway_of(), roles.user("gateway", "gateway"))
    first = site.consumer_of("--gc-interval", "0s")
    roles.started_as(first, roles.user("consumer", "consumer"))
    eventually("the consumer to own its cursor", first.owns)
    second = site.consumer_of("--gc-interval", "0s", consumer="second", name="consumer-second")
    second.environment.update(roles.user("second", "consumer", consumer="second"))
    second.start()
    assert second.wait() == 1
    assert "and consumer e2e of this buffer writes there already" in second.messages()


def test_the_collectors_exporter_needs_what_a_gateway_needs(site, roles):
    settings = append_to(site.buffer, create_bucket=False, tail_max=3, linger="20ms")
    exporter = site.add(MillpondCollector(site.directory, "millpond", settings, name="otelcol"))
    roles.started_as(exporter, roles.user("exporter", "gateway"))
    load = site.load(exporter, "--concurrency", 4, records=2_000)
    load.run()
    assert exporter.terminate() == 0
    [shard] = site.answer("manifest", "dump")["shards"]
    assert shard["pages"]
    committed = [part for entry in shard["entries"] for part in entry["parts"]]
    assert sum(part["records"] for part in committed) == 2_000


def test_a_collector_that_leads_needs_what_a_gateway_needs(site, roles):
    """It reads the cursor of the consumer that asks it for commits."""
    peers = {"enabled": True, "listen": f"127.0.0.1:{free_port()}"}
    settings = append_to(site.buffer, create_bucket=False, peers=peers)
    leader = site.add(MillpondCollector(site.directory, "millpond", settings, name="otelcol"))
    roles.started_as(leader, roles.user("exporter", "gateway"))
    site.load(leader, records=100).run()
    eventually("the Collector to lead", lambda: leader.metric("millpond_producer_leads") == 1)
    consumer = site.consumer_of("--gc-interval", "0s")
    roles.started_as(consumer, roles.user("consumer", "consumer"))
    consumer.until_it_watches()
    assert leader.metric("millpond_producer_watchers") == 1


def test_a_consumer_that_collects_needs_both_policies(site, roles):
    user = roles.user("both", "consumer", "gc")
    gateway, consumer, load = _filled(roles, user, "--gc-interval", "0s")
    assert gateway.terminate() == 0
    assert consumer.terminate() == 0
    # Without a grace period it would collect what a slow gateway is about to commit: so it collects
    # now.
    flags = ("--gc-interval", "50ms", "--gc-grace", "0s")
    collecting = site.consumer_of(*flags, name="consumer-collecting")
    roles.started_as(collecting, user)
    deleted = "millpond_gc_deleted_segments_total"
    eventually("segments to be deleted", lambda: collecting.metric(deleted) > 0)
    assert collecting.metric("millpond_gc_failures_total") == 0
    assert collecting.terminate() == 0
    assert_exactly_once(load.acknowledged(), site.clickhouse, site.database)


# Each role's rights on an object of each kind, in a buffer that has one of each: r(ead), w(rite),
# d(elete). Everything else is refused.
_KINDS = {
    "buffer": "buffer",
    "manifest": "shards/0000/manifest",
    "segment": "shards/0000/segments/01J00000000000000000000000",
    "page": "shards/0000/pages/00000000000000000000-01J00000000000000000000000",
    "cursor": "shards/0000/consumers/e2e/cursor",
    "other cursor": "shards/0000/consumers/other/cursor",
    "members": "shards/0000/consumers/e2e/members",
    "other members": "shards/0000/consumers/other/members",
    "letter": "shards/0000/dead-letters/e2e/00000000000000000000-x",
    "other letter": "shards/0000/dead-letters/other/00000000000000000000-x",
    "self-test": "self-test/x/alone",
    "doctor": "doctor/x",
    "unknown": "something",
}
_MAY = {
    "gateway": {
        "buffer": "rw",
        "manifest": "rw",
        "segment": "w",
        "page": "w",
        "cursor": "r",
        "other cursor": "r",
        "self-test": "rwd",
    },
    "consumer": {
        "buffer": "r",
        "manifest": "r",
        "segment": "r",
        "page": "r",
        "cursor": "rw",
        "other cursor": "r",
        "members": "rw",
        "letter": "w",
    },
    "gc": {
        "buffer": "r",
        "manifest": "rw",
        "segment": "d",
        "page": "rd",
        "cursor": "r",
        "other cursor": "r",
        "members": "d",
        "other members": "d",
    },
    "operator": {
        "buffer": "rw",
        "manifest": "r",
        "segment": "r",
        "page": "r",
        "cursor": "rwd",
        "other cursor": "rwd",
        "members": "rd",
        "other members": "rd",
        "letter": "rd",
        "other letter": "rd",
        "self-test": "rwd",
        "doctor": "rwd",
        "unknown": "r",
    },
}


def _allowed(attempt, *arguments: object) -> bool:
    try:
        attempt(*arguments)
    except S3Error as error:
        if error.code == "AccessDenied":
            return False
        raise
    return True


def _put(client: Client, bucket: str, key: str) -> None:
    client.put_object(bucket, key, io.BytesIO(b"x"), 1)


def _rights(client: Client, bucket: str, key: str) -> str:
    """A client's rights on an existing object; deleting comes last."""
    rights = "r" if _allowed(client.get_object, bucket, key) else ""
    rights += "w" if _allowed(_put, client, bucket, key) else ""
    return rights + ("d" if _allowed(client.remove_object, bucket, key) else "")


def test_each_part_refuses_what_others_do(roles):
    root = roles.client(CREDENTIALS)
    elsewhere = f"{roles.bucket}-elsewhere"
    root.make_bucket(elsewhere)
    _put(root, elsewhere, f"{roles.prefix}/buffer")
    keys = {kind: f"{roles.prefix}/{key}" for kind, key in _KINDS.items()}
    keys["another buffer"] = f"{roles.prefix}-2/buffer"
    for role, may in _MAY.items():
        client = roles.client(roles.user(role, role))
        for kind, key in keys.items():
            _put(root, roles.bucket, key)
            assert (role, kind, _rights(client, roles.bucket, key)) == (
                role,
                kind,
                may.get(kind, ""),
            )
        assert _rights(client, elsewhere, f"{roles.prefix}/buffer") == ""
        assert not _allowed(client.bucket_exists, elsewhere)
        assert not _allowed(client.remove_bucket, roles.bucket)
        # A missing object is reported as missing.
        with pytest.raises(S3Error, match="NoSuchKey"):
            client.get_object(roles.bucket, f"{roles.prefix}/shards/0001/manifest")
