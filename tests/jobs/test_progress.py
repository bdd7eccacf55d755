"""Tests of progress that handlers report: who sees it and when, how often it is written, and what is left of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from salon_jobs import current_job
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.jobs import progress
from salon_jobs.jobs.progress import ProgressWriter
from tests import tasks
from tests.management.operator import run
from tests.plans.explain import JOBS, signed_in
from tests.support import change, run_due, seen, working
from tests.tasks import Hooks
from tests.waiting import LIMIT_S, eventually

ROWS = "SELECT job_id, done FROM salon_jobs_job_progress"


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have progress written often; return how much each statement wrote."""
    monkeypatch.setattr(progress, "_EVERY_S", 0.05)
    written: list[int] = []
    write: Callable[..., None] = ProgressWriter._write

    def note(new: dict[Any, Any], *rest: Any) -> None:
        if new:
            written.append(len(new))
        write(new, *rest)

    monkeypatch.setattr(ProgressWriter, "_write", staticmethod(note))
    return written


def test_progress_is_seen_during_run(process_id: int, hooks: Hooks, stores: list[UUID], writes: list[int]) -> None:
    """It is gone with the end of the run."""
    looked = threading.Event()

    def say(**_: object) -> None:
        for done in range(5000):
            current_job().progress(done, 5000, "password=hunter2")
        current_job().progress(5000, 5000, "almost, token=abc123")
        looked.wait(LIMIT_S)

    async def say_less(**_: object) -> None:
        current_job().progress(3)
        await asyncio.to_thread(looked.wait, LIMIT_S)

    hooks.store, hooks.coroutine = say, say_less
    in_store, coroutine = tasks.in_store.enqueue(store_id=stores[0]), tasks.async_system.enqueue()
    assert in_store.refresh().progress is None
    with working(process_id, 2):
        eventually(lambda: sorted(seen(ROWS)), [(in_store.id, 5000), (coroutine.id, 3)])
        assert 1 <= len(writes) < 1000, "what is newer stands for what was before"
        said = in_store.refresh().progress
        assert said is not None
        assert (said.done, said.total, said.text) == (5000, 5000, "almost, token=***")
        assert coroutine.refresh().progress is not None
        with signed_in("boss") as client:
            for page in ("", f"{in_store.id}/change/"):
                shown = client.get(f"{JOBS}{page}").content.decode()
                assert "5,000 of 5,000 done: almost, token=***" in shown
        assert "3 done" in run("list", "--state", "running")[0]
        assert "5,000 of 5,000 done" in run("show", str(in_store.id))[0]
        change("UPDATE salon_jobs_job_progress SET lease = lease + 1")
        assert in_store.refresh().progress is None, "an earlier run said it"
        change("UPDATE salon_jobs_job_progress SET lease = lease - 1")
        looked.set()
        eventually(lambda: seen(ROWS), [])
    assert not progress.writer._new
    assert not progress.writer._shown


def test_progress_takes_whole_numbers(process_id: int, hooks: Hooks) -> None:
    """Only a worker writes it."""
    said: list[str] = []

    def say(**_: object) -> None:
        current_job().progress(1, 2)
        for done, total in ((-1, None), (0.5, None), (1, 2**63), ("1", None)):
            with pytest.raises(OptionInvalid, match="progress takes whole numbers from zero, not ") as caught:
                current_job().progress(done, total)  # type: ignore[arg-type]
            said.append(str(caught.value))

    hooks.system = say
    tasks.system.enqueue()
    run_due(process_id)
    assert len(said) == 4
    assert seen(ROWS) == []
