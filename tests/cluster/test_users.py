"""The rights that docs/clickhouse-users.md adds for replicated and for Distributed tables."""

from __future__ import annotations

import pytest

from cluster.servers import Cluster
from harness.process import eventually
from harness.services import http_get
from harness.users import documented, login

# Users with one right less.
LESS = {
    "without_sync": ("SYSTEM SYNC REPLICA ON *.*",),
    "without_remote": ("READ ON REMOTE",),
    "without_both": ("SYSTEM SYNC REPLICA ON *.*", "READ ON REMOTE"),
}


@pytest.fixture(scope="module")
def cluster(new_cluster) -> Cluster:
    access = documented()
    for user in access.users.values():
        # Each test has a separate database.
        user.grants = [grant.replace("otel.*", "*.*") for grant in user.grants]
    for name, rights in LESS.items():
        access.add(name, "millpond", *(f"REVOKE {right}" for right in rights))
    return new_cluster(shards=(2, 1), access=access)


def _consume_again(pipeline, user: str, name: str):
    """A consumer, started after a reset: it asks which rows the table has."""
    pipeline.millpond("consumer", "reset", "e2e", "--to", "earliest", "--yes")
    consumer = pipeline.consume_of(*login(pipeline.directory, user), name=name)
    consumer.start()
    return consumer


@pytest.mark.parametrize(
    ("distributed", "user"),
    [
        (None, "millpond"),
        # `--cluster` asks all replicas instead.
        (None, "without_sync"),
        # Replicas that catch up need no questions to others.
        (None, "without_remote"),
        ("main", "millpond"),
    ],
)
def test_the_rights_suffice_to_tell_which_rows_are_there(cluster, new_pipeline, distributed, user):
    pipeline = new_pipeline(cluster, distributed=distributed)
    gateway = pipeline.gateway("--linger", "20ms")
    consumer = pipeline.consume(*login(pipeline.directory, user))
    pipeline.send(gateway, "one")
    pipeline.until_bodies(["one"])
    assert consumer.terminate() == 0
    again = _consume_again(pipeline, user, "again")
    pipeline.send(gateway, "two")
    pipeline.until_bodies(["one", "two"])
    assert again.terminate() == 0
    output = consumer.messages() + again.messages()
    assert ("the grant SYSTEM SYNC REPLICA ON" in output) == (user == "without_sync")


def test_a_right_to_ask_replicas_is_missing(cluster, new_pipeline):
    pipeline = new_pipeline(cluster)
    gateway = pipeline.gateway("--linger", "20ms")
    consumer = pipeline.consume(*login(pipeline.directory, "without_both"))
    pipeline.send(gateway, "one")
    pipeline.until_bodies(["one"])
    assert consumer.terminate() == 0
    # The table lacks it, and another replica may have it.
    pipeline.send(gateway, "two")
    again = _consume_again(pipeline, "without_both", "again")
    wanted = "grant SYSTEM SYNC REPLICA, or name the cluster"
    eventually(
        "the reason on /readyz", lambda: wanted in http_get(f"http://{again.admin}/readyz")[1]
    )
    pipeline.until_bodies(["one"])


def test_a_right_to_ask_shards_is_missing(cluster, new_pipeline):
    """A consumer that cannot ask would store every row twice after a reset."""
    pipeline = new_pipeline(cluster, distributed="main")
    gateway = pipeline.gateway("--linger", "20ms")
    user = login(pipeline.directory, "without_remote")
    refused = pipeline.consume_of(*user, name="refused")
    refused.start()
    assert refused.wait() == 1
    wanted = "a reset would store every row twice: "
    assert wanted in refused.messages()
    assert "; run GRANT READ ON REMOTE TO without_remote: " in refused.messages()
    # Without identities there is nothing to ask, and a reset needs more than a yes.
    consumer = pipeline.consume(*user, "--columns", "none")
    pipeline.send(gateway, "one")
    pipeline.until_bodies(["one"])
    assert consumer.terminate() == 0
