"""Shows what is read of a job by handle, number and public id, while it lives and after it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.db import IntegrityError, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from salon_jobs import current_job, get_job, tenant_context
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import JobDoesNotExist, NoResult
from salon_jobs.core.records import ClaimedJob, EnqueueAction, JobState
from salon_jobs.jobs import JobHandle, Task, control, enqueue
from salon_jobs.jobs.results import load_result
from tests import tasks
from tests.support import change, claim, elsewhere, job_row, row_of, run, run_due, seen, wait_until_waiting
from tests.tasks import Hooks
from tests.waiting import LIMIT_S


@pytest.fixture(params=["default", "web"])
def role(request: pytest.FixtureRequest) -> Iterator[str]:
    """Make the worker's or the web's connection the one that jobs are enqueued on."""
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "DATABASE": request.param}):
        yield request.param


def add(
    task: Task[..., Any], public_id: UUID, *, key: str | None = None, mode: str = "replace", **arguments: Any
) -> Any:
    """Enqueue a job that has a public id."""
    options = task.using(job_key=key, job_key_mode=mode).options  # type: ignore[arg-type]
    job = task.new_job(task.payload.bind((), arguments), options)
    return enqueue.add(replace(job, public_id=public_id), using=conf.database)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("system", [False, True], ids=["store", "system"])
def test_public_id_costs_no_query(stores: list[UUID], role: str, key: str | None, system: bool) -> None:
    public_id = uuid4()
    with tenant_context(stores[0], using=role), CaptureQueriesContext(connections[role]) as queries:
        if system:
            handle = add(tasks.system, public_id, key=key, note="x")
        else:
            handle = add(tasks.in_store, public_id, key=key, store_id=stores[0], number=3)
    assert len(queries) == 1
    assert (handle.action, handle.public_id) == (EnqueueAction.INSERTED, public_id)
    row = row_of(handle.id)
    assert (row["public_id"], row["created_at"], row["job_key"]) == (public_id, handle.created_at, key)
    assert row["store_id"] == (None if system else stores[0])


@pytest.mark.usefixtures("role")
def test_waiting_job_keeps_public_id(database: None) -> None:
    """One without gets one."""
    first, second = uuid4(), uuid4()
    plain = tasks.keyed_system.enqueue(note="a")
    assert (plain.public_id, plain.created_at) == (None, None)
    modes = (("replace", first), ("replace", second), ("preserve_run_at", second), ("unsafe_dedupe", second))
    for mode, public_id in modes:
        handle = add(tasks.keyed_system, public_id, mode=mode, note="a")
        assert (handle.id, handle.public_id) == (plain.id, first)
        assert seen("SELECT public_id FROM salon_jobs_job") == [(first,)]


def test_running_job_gets_no_public_id(process_id: int) -> None:
    plain = tasks.keyed_system.enqueue(note="a")
    claim(process_id)
    before = job_row(plain.id)
    handle = add(tasks.keyed_system, uuid4(), mode="unsafe_dedupe", note="a")
    assert (handle.id, handle.action, handle.public_id) == (plain.id, EnqueueAction.KEPT, None)
    assert job_row(plain.id) == before


def test_unsafe_dedupe_leaves_the_waiting_job(database: None) -> None:
    """The statement that could give it a public id changes nothing else."""
    first = add(tasks.system, uuid4(), key="k", mode="unsafe_dedupe", note="a")
    before = row_of(first.id)
    second = add(tasks.system, uuid4(), key="k", mode="unsafe_dedupe", note="b")
    assert (second.id, second.action, second.public_id) == (first.id, EnqueueAction.KEPT, first.public_id)
    assert row_of(first.id) == before


@pytest.mark.parametrize("key", [None, "k"])
def test_public_id_of_kept_result_is_refused(process_id: int, role: str, hooks: Hooks, key: str | None) -> None:
    hooks.system = lambda note: note
    add(tasks.kept_result, public_id := uuid4(), note="first")
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "DATABASE": "default"}):
        run_due(process_id)
    with pytest.raises(IntegrityError, match="public_id belongs to a job whose result is kept"):
        add(tasks.kept_result, public_id, key=key, note="second")
    assert seen("SELECT id FROM salon_jobs_job") == []
    record = load_result(public_id)
    assert record is not None
    assert (record.value, record.gone) == ("first", True)
    assert add(tasks.kept_result, uuid4(), key=key).action == EnqueueAction.INSERTED


def test_public_id_of_ending_job_is_refused(process_id: int) -> None:
    handle = add(tasks.kept_result, public_id := uuid4())
    with ThreadPoolExecutor(1) as pool, connections["owner"].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(
            "WITH ended AS (DELETE FROM salon_jobs_job RETURNING *)"
            " INSERT INTO salon_jobs_job_result (job_id, public_id, task, queue, priority, payload, attempts, run_at,"
            " created_at, started_at, finished_at, worker_id, value, expires_at)"
            " SELECT id, public_id, task, queue, priority, payload, 1, run_at, created_at, now(), now(), %s, '1',"
            " now() + interval '1 hour' FROM ended",
            [process_id],
        )
        adding = elsewhere(pool, lambda: add(tasks.kept_result, public_id))
        wait_until_waiting()
        cursor.execute("COMMIT")
        with pytest.raises(IntegrityError, match="public_id belongs to a job whose result is kept"):
            adding.result(LIMIT_S)
    record = load_result(public_id)
    assert record is not None
    assert (record.id, record.gone) == (handle.id, True)


def test_job_is_followed_through_attempts(process_id: int, stores: list[UUID], hooks: Hooks) -> None:
    handle = add(tasks.in_store, public_id := uuid4(), store_id=stores[0], number=3)
    queued = handle.refresh()
    assert (queued.state, queued.attempts, queued.worker_ids, queued.first_started_at) == (JobState.QUEUED, 0, (), None)
    assert (queued.id, queued.public_id, queued.store_id) == (handle.id, public_id, stores[0])
    assert (queued.payload, queued.created_at) == ({"number": 3}, handle.created_at)

    def explode(**_: object) -> None:
        now = get_job(handle.id)
        attempt = current_job().attempt
        assert (now.state, now.attempts, now.worker_ids) == (JobState.RUNNING, attempt, attempt * (process_id,))
        raise ZeroDivisionError("not today")

    def claim_again() -> ClaimedJob:
        change("UPDATE salon_jobs_job SET run_at = now()")
        [job] = claim(process_id)
        return job

    hooks.store = explode
    run(claim_again(), process_id)
    failed = handle.refresh()
    assert (failed.state, failed.attempts, failed.worker_ids) == (JobState.QUEUED, 1, (process_id,))
    [error] = failed.errors
    assert (error.error_class, error.message, error.attempt) == ("builtins.ZeroDivisionError", "not today", 1)
    assert "explode" in error.traceback
    assert error.worker_id == process_id
    assert error.started_at == failed.first_started_at == failed.last_started_at
    job = claim_again()
    second = handle.refresh()
    assert (second.attempts, second.worker_ids) == (2, (process_id, process_id))
    assert second.first_started_at == error.started_at
    assert error.started_at is not None
    assert second.last_started_at > error.started_at

    def has_no_result(why: str) -> None:
        last = "last error: builtins.ZeroDivisionError: not today"
        with pytest.raises(NoResult, match=f"no result{why}; {last}"):
            handle.result()

    has_no_result(" yet: it is running")
    run(job, process_id)
    has_no_result(" yet: it is queued")
    run(claim_again(), process_id)
    has_no_result(": it failed")


def test_cancelled_job_has_no_result(database: None) -> None:
    handle = tasks.system.enqueue()
    control.cancel_jobs(handle)
    with pytest.raises(NoResult, match=f"job {handle.id} has no result: it was cancelled$"):
        handle.result()


def test_job_gone_without_result_does_not_exist(process_id: int) -> None:
    handle = tasks.system.enqueue()
    assert handle.status() is JobState.QUEUED
    run_due(process_id)
    with pytest.raises(JobDoesNotExist, match="keep_result"):
        handle.status()
    with pytest.raises(JobDoesNotExist):
        get_job(handle.id + 1)
    with transaction.atomic():
        rolled_back = tasks.system.enqueue()
        transaction.set_rollback(True)
    with pytest.raises(JobDoesNotExist):
        rolled_back.refresh()


def test_web_role_reads_jobs_by_public_id(stores: list[UUID]) -> None:
    """It does not read them by their number."""
    foreign, own = (add(tasks.in_store, uuid4(), store_id=store) for store in (stores[1], stores[0]))
    system = add(tasks.system, uuid4())
    with tenant_context(stores[0], using="web"):
        for handle in (foreign, system, own):
            record = load_result(handle.public_id, using="web")
            assert record is not None
            assert record.id == handle.id
        assert load_result(uuid4(), using="web") is None
        assert get_job(own.id, using="web").id == own.id
        for handle in (foreign, system):
            with pytest.raises(JobDoesNotExist):
                get_job(handle.id, using="web")


def test_handle_is_a_value() -> None:
    handle = JobHandle(1, EnqueueAction.KEPT)
    assert handle == JobHandle(1, EnqueueAction("kept"), None, None)
    assert {handle} == {JobHandle(1, EnqueueAction.KEPT)}
    with pytest.raises(AttributeError):
        handle.id = 2  # type: ignore[misc]
