"""Reads the processor time of processes (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.processes import descendants

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PARENT: Final = 1
# User and system time of the process itself, and of the children for which it has waited.
_TIMES: Final = slice(11, 15)


def seconds(pids: Iterable[int]) -> float:
    """Return what these processes and all they started have used since their start."""
    return sum(_ticks(each) for pid in pids for each in (pid, *descendants(pid))) / _TICKS_A_SECOND


def parent(pid: int, *, name: str) -> int | None:
    """Return the parent of a process if both are on this machine and have this name, else None."""
    try:
        found = int(_fields(pid)[_PARENT])
        return found if _name(pid) == _name(found) == name else None
    except FileNotFoundError:
        return None


def _ticks(pid: int) -> int:
    try:
        return sum(map(int, _fields(pid)[_TIMES]))
    except (FileNotFoundError, ProcessLookupError):  # it has just ended, and its parent's figures have it
        return 0


def _fields(pid: int) -> list[str]:
    """Return the fields of a process that follow its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
