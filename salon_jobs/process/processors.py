"""Processors that this process may use, by affinity and cgroup, and its use of memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path, PurePosixPath
from typing import Final

_MEMBERSHIP: Final = Path("/proc/self/cgroup")
_MEMORY: Final = Path("/proc/self/statm")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_processors(*, membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> int:
    """Return how many processors this process may use, rounded up: two in a container with a quota of 1.5.

    Tests pass ``membership`` (Linux's list of the cgroups of a process) and ``cgroups`` (where they are mounted);
    without them, no quota applies.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([count, *map(ceil, _quotas(membership, cgroups))]))


def memory_in_use_mb() -> int:
    """Return this process's resident memory in MiB; without /proc, its peak."""
    with suppress(OSError):
        return int(_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    import resource  # noqa: PLC0415 - Windows has none, and can import the commands

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size >> 20 if sys.platform == "darwin" else size >> 10


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """Yield the quotas of our cgroup and of its parents (versions 2 and 1), as numbers of processors."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container, the path can be the host's while the mount shows our own cgroup at its root.
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            if controllers:
                of_version_1 = cgroups / "cpu" / folder
                words = _words(of_version_1 / "cpu.cfs_quota_us") + _words(of_version_1 / "cpu.cfs_period_us")
            else:
                words = _words(cgroups / folder / "cpu.max")
            if len(words) == 2 and words[0] not in ("max", "-1"):
                yield int(words[0]) / int(words[1])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
