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


def test_processors_of_the_affinity(tmp_path: Path) -> None:
    assert usable_processors(membership=tmp_path / "none", cgroups=tmp_path) == 8


def test_processors_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_processors(membership=tmp_path / "none", cgroups=tmp_path) == 5


OF_VERSION_1 = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n"
NESTED = {"a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000", "other/cpu.max": "100000 100000"}


@pytest.mark.parametrize(
    ("membership", "quotas", "processors"),
    [
        *(
            ("0::/\n", {"cpu.max": quota}, processors)
            for quota, processors in (
                *(("max 100000", 8), ("100000 100000", 1), ("150000 100000", 2)),
                *(("50000 100000", 1), ("3200000 100000", 8)),
            )
        ),
        pytest.param("0::/a/b\n", NESTED, 2, id="the smallest around"),
        *(
            (OF_VERSION_1, {f"{where}/cpu.cfs_quota_us": quota_us, f"{where}/cpu.cfs_period_us": "100000"}, processors)
            for where in ("cpu", "cpu/docker/abc")
            for quota_us, processors in (("-1", 8), ("100000", 1), ("250000", 3))
        ),
    ],
)
def test_processors_of_a_quota(tmp_path: Path, membership: str, quotas: dict[str, str], processors: int) -> None:
    """By version 1 or 2 of cgroups; what a process is a member of, and the settings by path."""
    (member := tmp_path / "membership").write_text(membership)
    for path, text in quotas.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    assert usable_processors(membership=member, cgroups=tmp_path) == processors


def test_here_it_is_at_least_one() -> None:
    assert usable_processors() >= 1
