"""Tests of what a run logged: kept with an attempt that failed, bounded, without secrets, apart from other runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async

from salon_jobs import Discard
from salon_jobs.core.events import LONGEST_RECORD, JobLog, JsonLinesHandler, current_run, log_batch
from tests import tasks
from tests.management.operator import run
from tests.plans.explain import signed_in
from tests.plans.test_admin_plans import JOBS
from tests.support import run_on_threads, seen
from tests.tasks import Hooks

log = logging.getLogger("tests.shop")
KEPT = "SELECT log FROM salon_jobs_job WHERE id = %s"


@pytest.fixture(autouse=True)
def job_log() -> Iterator[JobLog]:
    """Keep lines as a worker's process does."""
    handler = JobLog()
    logging.getLogger().addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    logging.getLogger().removeHandler(handler)
    log.setLevel(logging.NOTSET)


def test_a_failed_attempt_keeps_the_last_lines_that_it_logged_itself(
    process_id: int, hooks: Hooks, stores: list[UUID]
) -> None:
    log.info("of no job")

    def fail(**_: object) -> None:
        log.info("charging %s", "password=hunter2")
        log.debug("not logged at this level")
        try:
            raise KeyError("no card")
        except KeyError:
            log.exception("cannot charge")
        raise ValueError("no such card")

    async def fail_later(**_: object) -> None:
        await sync_to_async(log.warning)("of the coroutine \x1b[31m\0")
        raise ValueError("no answer")

    hooks.store, hooks.coroutine = fail, fail_later
    first, second = tasks.in_store.enqueue(store_id=stores[0]), tasks.async_system.enqueue()
    run_on_threads(process_id)
    [error], [other] = first.refresh().errors, second.refresh().errors
    lines = error.log.splitlines()
    assert lines[0].endswith(" INFO tests.shop: charging password=***")
    assert lines[1].endswith(" ERROR tests.shop: cannot charge")
    assert lines[-1] == "KeyError: 'no card'"
    assert "of no job" not in error.log
    [line] = other.log.splitlines()
    assert line.endswith(r" WARNING tests.shop: of the coroutine \x1b[31m\x00")
    with signed_in("boss") as client:
        assert "tests.shop: charging password=***" in client.get(f"{JOBS}{first.id}/change/").content.decode()
    assert "tests.shop: charging password=***" in run("show", str(first.id))[0]


def test_a_run_keeps_64_kib_of_its_end(process_id: int, hooks: Hooks) -> None:
    def fail(**_: object) -> None:
        for number in range(5000):
            log.info("line %s", number)
        raise ValueError

    hooks.system = fail
    handle = tasks.system.enqueue()
    run_on_threads(process_id)
    [error] = handle.refresh().errors
    assert LONGEST_RECORD - 200 < len(error.log) <= LONGEST_RECORD
    assert error.log.endswith("line 4999")
    assert "line 0\n" not in error.log


@pytest.mark.parametrize("keep", ["failed", "all", "none"])
def test_the_setting_says_whose_lines_are_kept(process_id: int, hooks: Hooks, settings: Any, keep: str) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "KEEP_LOG": keep, "RETAIN_SUCCEEDED": timedelta(hours=1)}

    def work(note: str) -> None:
        log.info("working")
        if note:
            raise {"failed": ValueError("x"), "discarded": Discard("gone")}[note]

    hooks.system = work
    handles = [tasks.system.using(max_attempts=1).enqueue(note=note) for note in ("", "discarded", "failed")]
    run_on_threads(process_id)
    kept = [seen(KEPT, handle.id)[0][0] for handle in handles]
    assert [bool(text) for text in kept] == [keep == "all", keep == "all", False]
    assert bool(handles[2].refresh().errors[0].log) is (keep != "none")
    if keep == "all":
        assert "tests.shop: working" in run("show", str(handles[0].id))[0]
        with signed_in("boss") as client:
            assert "tests.shop: working" in client.get(f"{JOBS}{handles[0].id}/change/").content.decode()


def test_a_batch_is_still_one_write(monkeypatch: pytest.MonkeyPatch, job_log: JobLog) -> None:
    writer = JsonLinesHandler(StringIO())
    batches: list[int] = []
    monkeypatch.setattr(writer, "write_batch", lambda *_, **__: batches.append(1))
    monkeypatch.setattr(logging.getLogger(), "handlers", [job_log, writer])
    log_batch(logging.ERROR, "job_succeeded", [1, 2], fields=lambda number: {"number": number})
    assert batches == [1]
    assert current_run.get() is None
