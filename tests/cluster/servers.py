"""A ClickHouse cluster on this machine: ZooKeeper, and nodes in shards of replicas."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from cluster.keeper_proxy import KeeperProxy
from harness.process import free_port
from harness.services import ClickHouse, Service, tool
from harness.users import Access

HERE = Path(__file__).resolve().parent

# The engine of tables: one path for each shard and table.
REPLICATED = "ReplicatedMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}')"

# A node that was killed between fetching a part and telling ZooKeeper has a part that nobody knows.
# ClickHouse puts it aside, unless more than this share of the rows would go: then the table stays
# read-only until an operator looks. These tables may have no other part yet.
FEW_PARTS = "<replicated_max_ratio_of_wrong_parts>1</replicated_max_ratio_of_wrong_parts>"


class ZooKeeper(Service):
    """ZooKeeper, with its data in a directory that outlives the process."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        config = directory / "zoo.cfg"
        config.write_text(
            f"tickTime=1000\ndataDir={directory / 'zookeeper-data'}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\njute.maxbuffer=10485760\n"
            "4lw.commands.whitelist=srvr\n"
        )
        jars = Path(tool("MILLPOND_ZOOKEEPER")) / "*"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        # Few cores: no optimising compiler, no collector's threads.
        flags = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        super().__init__("zookeeper", ["java", *flags, "-cp", jars, main, config], directory)

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            # ZooKeeper answers `ruok` before it accepts sessions.
            connection.sendall(b"srvr")
            return b"Mode: " in connection.makefile("rb").read()


class Node(ClickHouse):
    """One ClickHouse server of a cluster."""

    def __init__(self, directory: Path, number: int, shard: int) -> None:
        self.number, self.shard = number, shard
        self.name_of_replica = f"r{number}"
        self.port, self.tcp_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = directory / f"node{number}.xml"
        arguments = [
            sys.executable,
            HERE / "node.py",
            tool("MILLPOND_LIBCHDB"),
            directory / f"node{number}-data",
            self.config,
            # The interserver listener has the HTTP port, on a different address.
            *(self.interserver, self.port),
        ]
        super().__init__(f"node{number}", arguments, directory)

    @property
    def interserver(self) -> str:
        return f"127.0.1.{self.number}"

    def configure(self, keeper: str, clusters: str, profile: str, access: Access) -> None:
        """Writes the configuration that the node reads when it starts."""
        users = self.config.with_suffix(".users.xml")
        more = access.sections()
        users.write_text(
            f"<clickhouse><profiles><default>{profile}</default>{more['profiles']}</profiles>"
            f"<quotas><default/>{more['quotas']}</quotas><users><default><password/>"
            "<networks><ip>127.0.0.1</ip></networks>"
            "<profile>default</profile><quota>default</quota></default>"
            f"{more['users']}</users></clickhouse>"
        )
        # Every libchdb has the same server UUID: with a common path for sessions, a starting node
        # would end the others'.
        sessions = f"<sessions_path>/clickhouse/sessions_{self.number}</sessions_path>"
        self.config.write_text(
            f"""<clickhouse>
<zookeeper>{keeper}{sessions}</zookeeper>
<macros><shard>{self.shard}</shard><replica>{self.name_of_replica}</replica></macros>
<background_distributed_schedule_pool_size>4</background_distributed_schedule_pool_size>
<background_schedule_pool_size>32</background_schedule_pool_size>
<database_atomic_delay_before_drop_table_sec>0</database_atomic_delay_before_drop_table_sec>
<merge_tree><initialization_retry_period>1</initialization_retry_period>
<zookeeper_session_expiration_check_period>1</zookeeper_session_expiration_check_period>
{FEW_PARTS}</merge_tree>
<users_config>{users}</users_config>
<http_port>{self.port}</http_port><tcp_port>{self.tcp_port}</tcp_port>
<listen_host>127.0.0.1</listen_host><listen_host>{self.interserver}</listen_host>
<remote_servers>{clusters}</remote_servers>
</clickhouse>
"""
        )


class Cluster:
    """ZooKeeper and nodes: `shards` lists the number of replicas of each shard.

    The nodes know the cluster as `main` (its shards replicate internally) and as `doubling` (a
    Distributed table writes to every replica itself).
    """

    def __init__(
        self,
        directory: Path,
        shards: tuple[int, ...] = (2,),
        profile: str = "",
        proxy: KeeperProxy | None = None,
        access: Access | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.profile = directory, profile
        # Users beside `default`.
        self.access = access or Access()
        self.keeper = ZooKeeper(directory)
        # The port at which the nodes find ZooKeeper.
        self.keeper_port = self.keeper.port
        if proxy is not None:
            proxy.forward_to(self.keeper.port)
            self.keeper_port = proxy.port
        places = [shard for shard, replicas in enumerate(shards, 1) for _ in range(replicas)]
        self.nodes = [Node(directory, number, shard) for number, shard in enumerate(places, 1)]

    @property
    def processes(self) -> list[Service]:
        return [self.keeper, *self.nodes]

    def configure(self) -> None:
        shards = sorted({node.shard for node in self.nodes})

        def cluster(name: str, internal: bool) -> str:
            made = ""
            for shard in shards:
                replicas = "".join(
                    f"<replica><host>127.0.0.1</host><port>{node.tcp_port}</port></replica>"
                    for node in self.nodes
                    if node.shard == shard
                )
                internally = str(internal).lower()
                made += (
                    f"<shard><internal_replication>{internally}</internal_replication>"
                    f"{replicas}</shard>"
                )
            return f"<{name}>{made}</{name}>"

        keeper = (
            f"<node><host>127.0.0.1</host><port>{self.keeper_port}</port></node>"
            "<session_timeout_ms>6000</session_timeout_ms>"
            "<operation_timeout_ms>4000</operation_timeout_ms>"
        )
        clusters = cluster("main", True) + cluster("doubling", False)
        for node in self.nodes:
            node.configure(keeper, clusters, self.profile, self.access)

    def up(self) -> Cluster:
        self.configure()
        self.keeper.up()
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.until_ready()
        return self

    def recover(self) -> None:
        """Starts the processes that a test killed, and thaws the frozen ones."""
        for process in self.processes:
            if process.running():
                process.send(signal.SIGCONT)
            else:
                process.kill()
                process.start()
        for process in self.processes:
            process.until_ready()

    def revive(self) -> None:
        """Restarts crashed nodes like a supervisor: this engine can crash when its peer dies in the
        middle of a native INSERT."""
        for node in self.nodes:
            if not node.running():
                node.kill()
                node.start()

    def everywhere(self, sql: str) -> None:
        """Runs a statement on every node: ON CLUSTER needs a worker that this engine lacks."""
        for node in self.nodes:
            node.query(sql)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
