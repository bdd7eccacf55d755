"""Reads the processor time of processes and of a database's server (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.processes import descendants
from benchmarks.server import Database

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PARENT: Final = 1
# User and system time of the process itself, and of the children for which it has waited.
_TIMES: Final = slice(11, 15)


def seconds(pids: Iterable[int]) -> float:
    """Return what these processes and all they started have used since their start."""
    return sum(_ticks(each) for pid in pids for each in (pid, *descendants(pid))) / _TICKS_A_SECOND


def server_pid(database: Database) -> int | None:
    """Return the process of the server that starts its backends; None when it runs elsewhere."""
    with database.connect() as connection:
        backend = connection.info.backend_pid
        try:
            name, parent = _name(backend), int(_fields(backend)[_PARENT])
        except FileNotFoundError:
            return None
    return parent if name == _name(parent) == "postgres" else None


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
