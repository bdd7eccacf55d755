"""What an operator's verbs do to many jobs at once, and what they say of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import IntegrityError, connections, transaction
from django.test.utils import CaptureQueriesContext

from salon_jobs import tenant_context
from salon_jobs.control import retry_jobs, run_again
from salon_jobs.core.errors import EnqueueRefused, JobDoesNotExist, OptionInvalid, PayloadInvalid, UnknownTask
from salon_jobs.core.records import ActionResult
from salon_jobs.jobs import control
from salon_jobs.worker.maintenance import rescue_process
from tests import tasks
from tests.management.operator import add as insert
from tests.settings import url_for
from tests.support import another_process, change, claim, elsewhere, seen, wait_until_waiting
from tests.waiting import LIMIT_S

OPERATOR = "operator"
GONE = "there is no such job, or you may not see it"


@pytest.fixture
def jobs(database: None) -> dict[str, int]:
    """Make one job of each state; returns their ids by state."""
    return {
        state: insert(state=state, attempts=3, max_attempts=3)
        for state in ("queued", "running", "succeeded", "failed", "cancelled")
    }


def add(key: str, state: str) -> int:
    return insert(state=state, job_key=key)


def change_one_by_one(verb: Callable[..., list[ActionResult[Any]]], ids: Iterable[int], statements: int) -> Any:
    """Apply a verb, which takes so many statements; return whose jobs it changed, and why it did not the others'."""
    with CaptureQueriesContext(connections[OPERATOR]) as captured:
        results = verb(ids, using=OPERATOR)
    assert sum("UPDATE salon_jobs_job" in query["sql"] for query in captured.captured_queries) == statements
    changed = {result.id for result in results if result.changed}
    return changed, {result.id: result.detail for result in results if not result.changed}


def test_retry_is_one_statement(jobs: dict[str, int]) -> None:
    """It tells the result of each job."""
    changed, refused = change_one_by_one(control.retry_jobs, [*jobs.values(), 10**9], 1)
    assert changed == {jobs["failed"], jobs["cancelled"]}
    refusal = "it is {}; only failed and cancelled jobs can be retried"
    live = {jobs[state]: refusal.format(state) for state in ("queued", "running", "succeeded")}
    assert refused == live | {10**9: GONE}
    columns = "state, max_attempts, reason, finished_at, run_at <= now()"
    for job_id in changed:
        assert columns_of(job_id, columns) == ("queued", 4, "", None, True)


def test_retry_removes_passed_expiry(database: None) -> None:
    over, ahead = add("over", "cancelled"), add("ahead", "failed")
    change("UPDATE salon_jobs_job SET expires_at = now() - interval '1 second' WHERE id = %s", over)
    change("UPDATE salon_jobs_job SET expires_at = now() + interval '1 hour' WHERE id = %s", ahead)
    assert [result.changed for result in control.retry_jobs([over, ahead], using=OPERATOR)] == [True, True]
    assert seen("SELECT id, expires_at IS NULL FROM salon_jobs_job ORDER BY id") == [(over, True), (ahead, False)]


def test_retry_gives_deaths_back(stores: list[UUID]) -> None:
    """Whoever retries the job: it fails again after as many deaths as a new one, as it failed first."""
    job_id = tasks.in_store.enqueue(store_id=stores[0], number=1).id
    for by, retried in ((None, OPERATOR), (stores[0], "web")):
        for left in range(4, -1, -1):
            process = another_process()
            claim(process)
            assert rescue_process(process, None, using="default").failed == (left == 0)
        with tenant_context(by, using=retried) if by else nullcontext():
            assert retry_jobs([job_id], using=retried) == [ActionResult(job_id, True)]
        assert seen("SELECT state, rescues FROM salon_jobs_job") == [("queued", 0)]


def test_replaced_job_has_no_deaths(database: None) -> None:
    """Its new arguments have killed no process; one that keeps its attempts keeps its deaths."""
    task, preserving = (
        tasks.keyed_system.using(job_key="k", job_key_mode=mode) for mode in ("replace", "preserve_run_at")
    )
    job_id = task.enqueue(note="deadly").id
    change("UPDATE salon_jobs_job SET attempts = 3, rescues = 4")
    assert preserving.enqueue(note="deadly").id == job_id
    assert seen("SELECT attempts, rescues FROM salon_jobs_job") == [(3, 4)]
    assert task.enqueue(note="harmless").id == job_id
    assert seen("SELECT attempts, rescues FROM salon_jobs_job") == [(0, 0)]


def test_cancel_is_one_statement(jobs: dict[str, int]) -> None:
    """It tells the result of each job."""
    del jobs["running"]  # test_cancellation.py
    changed, refused = change_one_by_one(control.cancel_jobs, jobs.values(), 1)
    assert changed == {jobs["queued"], jobs["failed"]}
    refusal = "it is {}; only queued, running and failed jobs can be cancelled"
    assert refused == {jobs[state]: refusal.format(state) for state in ("succeeded", "cancelled")}


def test_key_collision_refuses_only_that_job(database: None) -> None:
    """It names the holder."""
    holder = add("held", "queued")
    free, held, first, second = add("free", "failed"), add("held", "failed"), add("two", "failed"), add("two", "failed")
    results = control.retry_jobs([free, held, first, second], using=OPERATOR)
    assert results == [
        ActionResult(free, True),
        ActionResult(held, False, f"job {holder} waits under its key; cancel that one first"),
        ActionResult(first, True),
        ActionResult(second, False, f"job {first} waits under its key; cancel that one first"),
    ]


def test_newer_run_under_key_refuses_retry(database: None) -> None:
    """Else that run would be superseded by the older job. An older run refuses nothing."""
    running, newer = add("held", "running"), add("held", "failed")
    [retried] = control.retry_jobs([newer], using=OPERATOR)
    assert retried.changed
    older, holder = add("other", "failed"), add("other", "running")
    refusal = f"job {holder}, which is newer, runs under its key; wait for its end"
    assert control.retry_jobs([older, running], using=OPERATOR)[0] == ActionResult(older, False, refusal)


@pytest.mark.parametrize("others", [0, 1])
def test_key_taken_during_retry(database: None, others: int) -> None:
    held, *free = [add(key, "failed") for key in ("held", "free")[: 1 + others]]
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url_for(None)) as rival:
        [(holder,)] = rival.execute(
            "INSERT INTO salon_jobs_job (task, job_key) VALUES ('ping', 'held') RETURNING id"
        ).fetchall()
        retried = elsewhere(pool, lambda: control.retry_jobs([held, *free], using=OPERATOR))
        wait_until_waiting()
        rival.commit()
        # A batch is tried again job by job, and finds the holder then.
        name = f"job {holder}" if others else "another job"
        refusal = ActionResult(held, False, f"{name} waits under its key; cancel that one first")
        assert retried.result(LIMIT_S) == [refusal, *(ActionResult(id_, True) for id_ in free)]


def test_other_integrity_errors_are_raised(jobs: dict[str, int]) -> None:
    change("ALTER TABLE salon_jobs_job ADD CONSTRAINT for_this_test CHECK (state <> 'queued') NOT VALID")
    try:
        with pytest.raises(IntegrityError, match="for_this_test"):
            control.retry_jobs([jobs["failed"]], using=OPERATOR)
    finally:
        change("ALTER TABLE salon_jobs_job DROP CONSTRAINT for_this_test")


def test_operators_lock_jobs_by_id(database: None) -> None:
    """Whatever the order in which they name them: a third transaction holds one until both have begun."""
    ids = [add(f"k:{number}", "failed") for number in range(3)]
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic(using="owner"):
            seen("SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE", ids[1])
            orders = (ids, ids[::-1])
            works = [elsewhere(pool, partial(control.retry_jobs, order, using=OPERATOR)) for order in orders]
            wait_until_waiting(2)
        assert sum(result.changed for work in works for result in work.result(LIMIT_S)) == 3


def test_store_changes_only_its_jobs(stores: list[UUID]) -> None:
    """Without an alias, that of the tables is used."""
    ids = [insert(state="failed", store_id=store_id) for store_id in stores[:2]]
    with tenant_context(stores[0], using="web"):
        assert retry_jobs(ids, using="web") == [ActionResult(ids[0], True), ActionResult(ids[1], False, GONE)]
        assert [result.changed for result in control.change_jobs(ids, queue="night", using="web")] == [True, False]
        assert [result.changed for result in control.discard_jobs(ids, using="web")] == [True, False]
        assert control.retry_jobs(ids[:1], using="web")[0].changed
    queued = "it is queued; only failed and cancelled jobs can be retried"
    assert retry_jobs(ids) == [ActionResult(ids[0], False, queued), ActionResult(ids[1], True)]


def test_retry_at_an_instant(jobs: dict[str, int]) -> None:
    """The job is due then, and keeps no expiry before it."""
    at = datetime.now(UTC) + timedelta(hours=5)
    change("UPDATE salon_jobs_job SET expires_at = now() + interval '1 hour' WHERE id = %s", jobs["failed"])
    assert control.retry_jobs([jobs["failed"]], at=at, using=OPERATOR) == [ActionResult(jobs["failed"], True)]
    assert columns_of(jobs["failed"], "state, run_at, expires_at") == ("queued", at, None)
    with pytest.raises(OptionInvalid, match="time zone"):
        control.retry_jobs([jobs["cancelled"]], at=datetime(2026, 5, 6), using=OPERATOR)  # noqa: DTZ001


def test_discard_ends_queued_and_failed_jobs(jobs: dict[str, int]) -> None:
    changed, refused = change_one_by_one(control.discard_jobs, jobs.values(), 1)
    assert changed == {jobs["queued"], jobs["failed"]}
    refusal = "it is {}; only queued and failed jobs can be discarded"
    assert refused == {jobs[state]: refusal.format(state) for state in ("running", "succeeded", "cancelled")}
    for job_id in changed:
        ended = columns_of(job_id, "reason, state, finished_at IS NOT NULL")
        assert ended == ("discarded: by an operator", "cancelled", True)
    assert columns_of(jobs["running"], "cancel_requested_at") == (None,)


def test_only_queued_jobs_are_changed(jobs: dict[str, int]) -> None:
    change_priority = partial(control.change_jobs, priority=-5)
    assert change_one_by_one(change_priority, jobs.values(), 1)[0] == {jobs["queued"]}
    control.change_jobs([jobs["queued"]], queue="night", using=OPERATOR)
    changed = seen("SELECT id, priority FROM salon_jobs_job WHERE queue = 'night' OR priority <> 0")
    assert changed == [(jobs["queued"], -5)]


def test_handles_and_ids_are_taken_alike(database: None) -> None:
    first, second = tasks.system.enqueue(), tasks.system.enqueue()
    assert control.change_jobs(first, priority=1) == [ActionResult(first.id, True)]
    assert control.change_jobs(first.id, queue="mail") == [ActionResult(first.id, True)]
    assert control.cancel_jobs(first) == [ActionResult(first.id, True)]
    assert control.retry_jobs([first]) == [ActionResult(first.id, True)]
    both = [ActionResult(first.id, True), ActionResult(second.id, True)]
    assert control.discard_jobs([first, second.id]) == both
    assert control.retry_jobs(handle for handle in (first, second)) == both
    assert control.cancel_jobs([]) == []


@pytest.mark.parametrize("jobs", ["5", ["5"], [None], None, True, 5.0, [(5, "inserted")]])
def test_only_handles_and_ids_are_taken(database: None, jobs: Any) -> None:
    for action in (control.cancel_jobs, control.discard_jobs, control.retry_jobs):
        with pytest.raises(OptionInvalid, match="jobs are handles, numbers or public IDs, not "):
            action(jobs)


@pytest.mark.parametrize(
    ("values", "message"),
    [({}, "priority or queue"), ({"priority": 40_000}, "priority must be"), ({"queue": ""}, "queue must be")],
)
def test_impossible_change_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionInvalid, match=message):
        control.change_jobs([1], using=OPERATOR, **values)


_KEPT = "task, store_id, queue, priority, max_attempts, keep_result, concurrency_key"


def columns_of(job_id: int, columns: str) -> tuple[Any, ...]:
    [found] = seen(f"SELECT {columns} FROM salon_jobs_job WHERE id = %s", job_id)
    return tuple(found)


def test_new_job_is_like_earlier_one(stores: list[UUID]) -> None:
    """The earlier one stays."""
    like: dict[str, Any] = {"queue": "night", "priority": -3, "max_attempts": 9, "concurrency_key": "mine"}
    old = insert(task="test-store", state="failed", store_id=stores[0], job_key="k", payload='{"number": 1}', **like)
    change("UPDATE salon_jobs_job SET keep_result = interval '2 hours' WHERE id = %s", old)
    before = columns_of(old, "*")
    with tenant_context(stores[0], using="web"):
        handle = run_again(old, {"number": 7}, using="web")
    assert columns_of(old, "*") == before
    assert columns_of(handle.id, _KEPT) == columns_of(old, _KEPT)
    new = columns_of(handle.id, "state, attempts, job_key, payload ->> 'number', run_at <= now()")
    assert new == ("queued", 0, "k", "7", True)


def test_key_is_made_of_new_arguments(database: None) -> None:
    old = insert(task="test-keyed-system", state="failed", job_key="k:old", payload='{"note": "old"}')
    handle = run_again(old, {"note": "new"})
    assert columns_of(handle.id, "job_key, payload ->> 'note'") == ("k:new", "new")
    with pytest.raises(EnqueueRefused, match=rf"^job {handle.id} is queued or running under its key$"):
        run_again(old, {"note": "new"})
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(2,)]


def test_misfit_arguments_add_nothing(stores: list[UUID]) -> None:
    old = insert(task="test-store", state="failed", store_id=stores[0])
    for arguments, said in (
        ({"number": "x"}, r"Expected `int`, got `str` - at `\$.number`"),
        ({"numbre": 1}, "no argument 'numbre'; did you mean 'number'"),
        ({"store_id": str(stores[1])}, "leave out 'store_id', since the store stays"),
    ):
        with tenant_context(stores[0], using="web"), pytest.raises(PayloadInvalid, match=said):
            run_again(old, arguments, using="web")
    with pytest.raises(UnknownTask, match="'undeclared'"):
        run_again(insert(task="undeclared"), {})
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(2,)]


def test_store_reaches_no_job_of_another(stores: list[UUID]) -> None:
    old = insert(task="test-store", state="failed", store_id=stores[0])
    with tenant_context(stores[1], using="web"), pytest.raises(JobDoesNotExist, match=f"no job {old}, or you may not"):
        run_again(old, {}, using="web")
