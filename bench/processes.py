"""CPU and memory of processes on this machine, from /proc."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgrole_controller.local.process import descendants


@dataclass(frozen=True, slots=True)
class Memory:
    """In MiB. `own` counts only private pages: the kernel keeps or drops file pages at will."""

    resident: float
    own: float


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    return _seconds(stat_fields(pid)[11:13])


def ended_cpu_seconds(pid: int) -> float:
    """User and system time of those children of a process that have ended."""
    return _seconds(stat_fields(pid)[13:15])


def _seconds(ticks: Sequence[str]) -> float:
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()


def cpu_of_family(pid: int) -> float:
    """CPU seconds so far of a process and its descendants."""
    return ended_cpu_seconds(pid) + sum(cpu_seconds(one) for one in (pid, *descendants(pid)))


def read_status(pid: int, name: str) -> int:
    """Returns a memory figure of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has no {name}")


def read_memory_of(pid: int) -> Memory:
    own = read_status(pid, "RssAnon") + read_status(pid, "VmSwap")
    return Memory(read_status(pid, "VmRSS") / 2**20, own / 2**20)
