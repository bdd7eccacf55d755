"""Tests that a worker starts as many processes as it may use processors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from salon_jobs.process.processors import usable_processors


@pytest.fixture(autouse=True)
def affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process use eight processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def usable(folder: Path, membership: str, **files: str) -> int:
    """Return the processors of a process in these cgroups; ``files`` are their settings, by path."""
    member = folder / "membership"
    member.write_text(membership)
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return usable_processors(membership=member, cgroups=folder)


def test_processors_of_the_affinity(tmp_path: Path) -> None:
    assert usable_processors(membership=tmp_path / "none", cgroups=tmp_path) == 8


def test_processors_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_processors(membership=tmp_path / "none", cgroups=tmp_path) == 5


@pytest.mark.parametrize(
    ("quota", "processors"),
    [("max 100000", 8), ("100000 100000", 1), ("150000 100000", 2), ("50000 100000", 1), ("3200000 100000", 8)],
)
def test_a_quota_of_version_2_counts(tmp_path: Path, quota: str, processors: int) -> None:
    assert usable(tmp_path, "0::/\n", **{"cpu.max": f"{quota}\n"}) == processors


def test_the_smallest_quota_around_counts(tmp_path: Path) -> None:
    quotas = {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "400000 100000\n", "other/cpu.max": "100000 100000\n"}
    assert usable(tmp_path, "0::/a/b\n", **quotas) == 2


@pytest.mark.parametrize(("quota_us", "processors"), [("-1", 8), ("100000", 1), ("250000", 3)])
@pytest.mark.parametrize("where", ["cpu", "cpu/docker/abc"])
def test_a_quota_of_version_1_counts(tmp_path: Path, where: str, quota_us: str, processors: int) -> None:
    membership = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n"
    quotas = {f"{where}/cpu.cfs_quota_us": f"{quota_us}\n", f"{where}/cpu.cfs_period_us": "100000\n"}
    assert usable(tmp_path, membership, **quotas) == processors


def test_here_it_is_at_least_one() -> None:
    assert usable_processors() >= 1
