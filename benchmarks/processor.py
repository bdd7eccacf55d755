"""Reads the processor time of processes and threads (Linux)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.processes import descendants

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PARENT: Final = 1
_WAITS: Final = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)$", re.MULTILINE)
# User and system time of the process itself, and of the children for which it has waited.
_TIMES: Final = slice(11, 15)


def seconds(pids: Iterable[int]) -> float:
    """Return what these processes and all they started have used since their start."""
    return sum(_ticks(each) for pid in pids for each in (pid, *descendants(pid))) / _TICKS_A_SECOND


def nanoseconds(pid: int) -> int:
    """Return what a process of one thread has used, as the scheduler counts it; 0 for one that has ended."""
    return _on_processor(Path(f"/proc/{pid}"))


def wake_ups(pids: Iterable[int]) -> dict[Path, int]:
    """Return how often each thread of these processes and of all they started has begun to wait, for what came next."""
    found: dict[Path, int] = {}
    for pid in pids:
        for each in (pid, *descendants(pid)):
            for status in Path(f"/proc/{each}/task").glob("*/status"):
                with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                    found[status] = int(_WAITS.findall(status.read_text())[0])
    return found


def threads(pid: int) -> dict[int, tuple[str, int]]:
    """Return, by the id of each thread of a process, its name and what it has used in nanoseconds.

    The first has the id of the process. Those of Python have no names of their own before 3.14.
    """
    found: dict[int, tuple[str, int]] = {}
    for path in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has just ended
            found[int(path.name)] = ((path / "comm").read_text().strip(), _on_processor(path))
    return found


def _on_processor(path: Path) -> int:
    try:
        return int((path / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return 0


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
