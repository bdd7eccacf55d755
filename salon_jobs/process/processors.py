"""How many processors this process may use: those of the machine, its affinity, and the quota of its cgroup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path, PurePosixPath
from typing import Final

_MEMBERSHIP: Final = Path("/proc/self/cgroup")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_processors(*, membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> int:
    """Return how many processors this process may use, a part of one counting as one.

    A container with a quota of 1.5 processors has two. Tests pass ``membership`` (Linux's list of the cgroups of a
    process) and ``cgroups`` (where they are mounted); where there are none, no quota applies.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([count, *map(ceil, _quotas(membership, cgroups))]))


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """Yield the quotas of our cgroup and of those around it, as numbers of processors, of version 2 and 1."""
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
            quota = _of_version_1(cgroups / "cpu" / folder) if controllers else _of_version_2(cgroups / folder)
            if quota is not None:
                yield quota


def _of_version_2(folder: Path) -> float | None:
    words = _words(folder / "cpu.max")
    return None if len(words) != 2 or words[0] == "max" else int(words[0]) / int(words[1])


def _of_version_1(folder: Path) -> float | None:
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    return None if not quota or not period or int(quota[0]) < 0 else int(quota[0]) / int(period[0])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
