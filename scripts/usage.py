"""CPU time and memory of processes, for the benchmarks in Python."""

import os
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def peak_memory(pid: int) -> float:
    """Peak resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(line for line in status if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024
