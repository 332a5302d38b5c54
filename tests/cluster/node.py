"""One node of the cluster as a process: ClickHouse from libchdb.

    node.py LIBCHDB DATA CONFIG [INTERSERVER_HOST INTERSERVER_PORT]

It serves CONFIG until it is killed. With an interserver address it replicates.
"""

from __future__ import annotations

import ctypes
import sys

from replicating import replicate

# The servers stay open as long as the last statement runs.
STATEMENTS = (
    "SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP; SELECT sleepEachRow(1) FROM system.numbers "
    "SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0, "
    "max_execution_time = 0 FORMAT Null"
)


def main() -> None:
    library, data, config, *interserver = sys.argv[1:]
    engine = ctypes.CDLL(library)
    engine.chdb_set_signal_handlers_enabled(ctypes.c_int(0))
    if interserver:
        host, port = interserver
        replicate(engine, host, int(port))
    arguments = [
        "clickhouse",
        f"--path={data}",
        f"--config-file={config}",
        "--multiquery",
        "--query",
        STATEMENTS,
    ]
    raw = (ctypes.c_char_p * len(arguments))(*[argument.encode() for argument in arguments])
    engine.chdb_query_cmdline.restype = ctypes.c_void_p
    engine.chdb_query_cmdline(ctypes.c_int(len(arguments)), raw)


main()
