"""Shows that a job is enqueued once others have ended: exactly once, with the last of them, however they end."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test import TestCase, override_settings

from salon_jobs import Discard, Snooze, fan_out, tenant_context
from salon_jobs.core.errors import EnqueueRefused, PayloadInvalid
from salon_jobs.db import statements
from salon_jobs.erasure import erase_store
from salon_jobs.jobs import FanOut, control, leases
from salon_jobs.jobs.fan_out import afan_out, fan_out_progress
from salon_jobs.models import FollowUp, Job
from salon_jobs.testing import assert_enqueued, drain_jobs
from salon_jobs.worker.maintenance import Maintenance
from tests import tasks
from tests.jobs.rows import jobs
from tests.settings import SALON_JOBS, url_for
from tests.support import (
    change,
    claim,
    elsewhere,
    finish_many,
    in_thread,
    leases_of,
    run,
    run_due,
    run_on_threads,
    seen,
    waiting_count,
)
from tests.tasks import Hooks, raises
from tests.waiting import eventually

DAY = timedelta(days=1)
DONE = tasks.keyed_system.call(note="done")


def followed(number: int = 3) -> list[int]:
    """Enqueue jobs and what follows them; return their ids."""
    calls = (tasks.system.call(note=str(n)) for n in range(number))
    return [handle.id for handle in tasks.system.enqueue_many(calls, then=DONE)]


def remaining() -> list[int]:
    return [row[0] for row in seen("SELECT remaining FROM salon_jobs_follow_up ORDER BY id")]


def follow_ups() -> list[tuple[Any, ...]]:
    return seen("SELECT payload->>'note', job_key, store_id FROM salon_jobs_job WHERE task = 'test-keyed-system'")


def expire(process_id: int) -> None:
    change("UPDATE salon_jobs_job SET expires_at = now() - interval '1 s' WHERE state = 'queued'")
    run_due(process_id)


def lose_the_process(process_id: int) -> None:
    assert claim(process_id)
    change("UPDATE salon_jobs_job SET rescues = 4")
    change("DELETE FROM salon_jobs_process")
    leases_of(process_id).rescue("gone")


# What ends a job that is queued: a hook and a run of it, or something else.
ENDS: dict[str, Callable[[int, int], object]] = {
    "succeeded": lambda process_id, _: run_due(process_id),
    "succeeded and kept": lambda process_id, _: run_due(process_id),
    "failed": lambda process_id, _: run_due(process_id),
    "discarded": lambda process_id, _: run_due(process_id),
    "discarded by an operator": lambda _, job_id: control.discard_jobs(job_id),
    "cancelled": lambda _, job_id: control.cancel_jobs(job_id, using="operator"),
    "expired": lambda process_id, _: expire(process_id),
    "process died": lambda process_id, _: lose_the_process(process_id),
    "deleted": lambda _, job_id: change("DELETE FROM salon_jobs_job WHERE id = %s", job_id),
}
RAISED = {"failed": OSError(), "discarded": Discard("no need")}


@pytest.mark.parametrize("end", ENDS)
def test_last_end_enqueues_follow_up(hooks: Hooks, process_id: int, end: str) -> None:
    if end in RAISED:
        hooks.system = raises(RAISED[end])
    with override_settings(SALON_JOBS={**SALON_JOBS, "RETAIN_SUCCEEDED": DAY if "kept" in end else None}):
        [job_id] = followed(1)
        change("UPDATE salon_jobs_job SET max_attempts = 1")
        assert (remaining(), follow_ups()) == ([1], [])
        ENDS[end](process_id, job_id)
    assert (remaining(), follow_ups()) == ([], [("done", "k:done", None)])
    whose = {"task": "test-system", "jobs": 1, "first": job_id, "last": job_id, "fan_out": None}
    assert Job.objects.get(task="test-keyed-system").follows == whose


def test_retried_job_counts_once(hooks: Hooks, process_id: int) -> None:
    followed(2)
    for error in (Snooze(timedelta(0)), OSError()):
        hooks.system = raises(error)
        run_due(process_id)
        assert (remaining(), follow_ups()) == ([2], [])
        change("UPDATE salon_jobs_job SET run_at = now()")
    hooks.reset()
    run_due(process_id)
    assert (remaining(), len(follow_ups())) == ([], 1)


def test_worker_ends_many_at_once(process_id: int) -> None:
    followed(20)
    followed(20)
    run_on_threads(process_id)
    assert (remaining(), seen("SELECT count(*) FROM salon_jobs_job")) == ([], [(1,)]), "both have the same key"


@contextmanager
def counting_at_once(*ends: Callable[[], object]) -> Generator[list[Future[object]]]:
    """End jobs on connections of their own, which all wait before they count, and then go on at once."""
    with ThreadPoolExecutor(len(ends)) as pool:
        with psycopg.connect(url_for(None)) as holder:
            holder.execute("SELECT FROM salon_jobs_follow_up FOR UPDATE")
            running = [elsewhere(pool, end) for end in ends]
            eventually(lambda: any(end.done() for end in running) or waiting_count() == len(ends))
            assert not any(end.done() for end in running)
        yield running


def test_counting_waits_for_its_turn(process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain batch waits for 20 ms; the statement after it, and those of the next seconds, have no such limit."""
    raised: list[Exception] = []

    def run_raw(*arguments: Any, **options: Any) -> list[Any]:
        try:
            return statements.run_raw(*arguments, **options)
        except Exception as error:
            raised.append(error)
            raise

    monkeypatch.setattr(leases, "run_raw", run_raw)
    followed(2)
    tasks.system.enqueue()
    claimed = claim(process_id)
    with counting_at_once(lambda: finish_many(claimed, process_id)) as [end]:
        assert end.result() == {job.fence for job in claimed}
    assert list(map(statements.is_lock_conflict, raised)) in ([], [True]), "which depends on how long the holder took"
    assert (remaining(), len(follow_ups())) == ([], 1)


def test_crossing_ends_do_not_deadlock(database: None) -> None:
    first, second = followed(2), followed(2)

    def end(*ids: int) -> None:
        with transaction.atomic():
            for job in ids:
                Job.objects.filter(pk=job).delete()

    with counting_at_once(lambda: end(first[0], second[0]), lambda: end(second[1], first[1])) as ends:
        assert [each.result() for each in ends] == [None, None]
    assert (remaining(), len(follow_ups())) == ([], 1), "both have the same key"


def test_each_follow_up_is_written_once_a_transaction(database: None) -> None:
    written = "SELECT n_tup_upd FROM pg_stat_xact_user_tables WHERE relname = 'salon_jobs_follow_up'"
    first, second = followed(20), followed(20)
    with transaction.atomic(), connection.cursor() as cursor:
        before = cursor.execute(written).fetchone()[0]
        for pair in zip(first[1:], second[1:], strict=True):
            cursor.execute("DELETE FROM salon_jobs_job WHERE id = ANY (%s)", [list(pair)])
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert cursor.execute(written).fetchone() == (before + 2,)
    assert remaining() == [1, 1]


def test_savepoint_rollback_is_not_counted(database: None) -> None:
    ids = followed(6)

    def end(*some: int) -> None:
        cursor.execute("DELETE FROM salon_jobs_job WHERE id = ANY (%s)", [list(some)])
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")

    with transaction.atomic(), connection.cursor() as cursor:
        end(ids[0])
        savepoint = str(connection.savepoint())
        end(*ids[1:3])
        transaction.savepoint_rollback(savepoint)
        end(*ids[3:])
    assert remaining() == [2]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("mode", ["replace", "preserve_run_at", "unsafe_dedupe"])
def test_held_key_holds_up_no_end(process_id: int, monkeypatch: pytest.MonkeyPatch, mode: str, commits: bool) -> None:
    [held] = followed(1)
    [other] = tasks.system.enqueue_many([tasks.system.call()], then=tasks.system.call(note="other"))
    change(
        "UPDATE salon_jobs_follow_up SET options = options || %s WHERE options ? 'job_key'",
        f'{{"job_key_mode": "{mode}"}}',
    )
    maintenance = Maintenance(using="default")
    with psycopg.connect(url_for(None)) as holder:
        holder.execute(
            "INSERT INTO salon_jobs_job (task, job_key, payload)"
            " SELECT task, 'k:done', payload FROM salon_jobs_follow_up WHERE options ? 'job_key'"
        )
        for job_id in (held, other.id):
            Job.objects.filter(pk=job_id).delete()
        assert remaining() == [0], "the job of the other is enqueued"
        maintenance.poll()
        assert remaining() == [0]
        if not commits:
            holder.rollback()
    monkeypatch.setattr(maintenance, "_inspect_at", 0.0)
    maintenance.poll()
    assert (remaining(), follow_ups()) == ([], [("done", "k:done", None)])
    maintenance.poll()
    assert len(follow_ups()) == 1


def test_maintenance_waits_once_for_held_key(process_id: int) -> None:
    """It waits half a second at most, not for each that needs the key."""
    with transaction.atomic():
        tasks.keyed_system.enqueue(note="done")
        change(
            "INSERT INTO salon_jobs_follow_up (task, payload, options, remaining)"
            " SELECT 'test-keyed-system', '{}', '{\"job_key\": \"k:done\"}', 0 FROM generate_series(1, 200)"
        )
        in_thread(lambda: Maintenance(using="default").poll())
        assert len(remaining()) == 200

    def poll() -> list[int]:
        Maintenance(using="default").poll()
        return remaining()

    eventually(poll, [])


def test_retries_by_hand(process_id: int) -> None:
    """They are waited for until the follow-up is enqueued, which they never enqueue again."""
    first, second = followed(2)
    control.cancel_jobs([first])
    control.retry_jobs([first])
    assert remaining() == [2]
    control.cancel_jobs([first, second])
    assert len(follow_ups()) == 1
    change("DELETE FROM salon_jobs_job WHERE task = 'test-keyed-system'")
    control.retry_jobs([first, second])
    run_due(process_id)
    assert (remaining(), follow_ups()) == ([], [])


def test_pruning_does_not_count(database: None) -> None:
    first, _ = followed(2)
    control.cancel_jobs([first])
    change("DELETE FROM salon_jobs_job WHERE id = %s", first)
    assert (remaining(), follow_ups()) == ([1], [])


def test_no_jobs_enqueue_follow_up_at_once(stores: list[UUID]) -> None:
    assert followed(0) == []
    assert (remaining(), len(follow_ups())) == ([], 1)
    fan_out(tasks.in_store, FanOut(then=tasks.keyed_system.call(note="no stores"), exclude=stores))
    assert (remaining(), len(follow_ups())) == ([], 2)


def test_waiting_keyed_jobs_are_waited_for(process_id: int) -> None:
    calls = [tasks.keyed_system.call(note=str(n)) for n in range(3)]
    waiting = tasks.keyed_system.enqueue(note="0")
    then = tasks.system.call(note="then")
    tasks.keyed_system.enqueue_many(calls, then=then)
    assert remaining() == [3]
    assert seen("SELECT follow_up_id IS NOT NULL FROM salon_jobs_job WHERE id = %s", waiting.id) == [(True,)]
    tasks.keyed_system.enqueue_many(calls, then=then)
    assert remaining() == [3], "none is left to wait for: the second is enqueued at once"
    assert_enqueued(tasks.system, count=1)
    tasks.keyed_system.enqueue(note="0")
    run_due(process_id)
    assert remaining() == []


def test_follow_up_has_options_of_its_task(process_id: int) -> None:
    waiting = tasks.keyed_system.using(run_in=timedelta(hours=1)).enqueue(note="done")
    followed(1)
    run_due(process_id)
    assert seen("SELECT id, run_at <= now() FROM salon_jobs_job") == [(waiting.id, True)]


def test_follow_up_of_store_jobs(stores: list[UUID], process_id: int) -> None:
    then = tasks.in_store.call(store_id=stores[2], number=9)
    result = async_to_sync(afan_out)(tasks.in_store, FanOut(then=then), number=1)
    assert (result.inserted, remaining()) == (3, [3])
    run_due(process_id)
    assert remaining() == []
    assert seen("SELECT store_id, payload->>'number' FROM salon_jobs_job") == [(stores[2], "9")]
    assert fan_out_progress(result.id).done == 3


def test_web_role_gives_follow_ups(stores: list[UUID], settings: Any) -> None:
    """It gives them to its store and to no store."""
    settings.SALON_JOBS = {**SALON_JOBS, "DATABASE": "web"}
    own, other = (tasks.in_store.call(store_id=store) for store in stores[:2])
    with tenant_context(stores[0], using="web"):
        for then in (own, DONE):
            tasks.in_store.enqueue_many([own], then=then)
        with pytest.raises(EnqueueRefused, match="salon_jobs_add_follow_up: store_id is not the current store"):
            tasks.in_store.enqueue_many([own], then=other)
    assert remaining() == [1, 1]
    with tenant_context(stores[0], using="web"):
        control.cancel_jobs([job_id for (job_id,) in jobs("id")], using="web")
    assert (remaining(), follow_ups()) == ([], [("done", "k:done", None)])


def test_web_role_ends_job_before_other_stores(stores: list[UUID]) -> None:
    fan_out(tasks.in_store, FanOut(then=tasks.keyed.call(store_id=stores[2], number=7), exclude=stores[1:]))
    [(job_id,)] = jobs("id")
    with tenant_context(stores[0], using="web"):
        control.cancel_jobs(job_id, using="web")
    assert jobs("store_id, job_key", "state = 'queued'") == [(stores[2], "k:7")]


def test_follow_up_takes_no_jobs_of_others(stores: list[UUID]) -> None:
    other = tasks.in_store.enqueue(store_id=stores[1])
    with tenant_context(stores[0], using="web"), connections["web"].cursor() as cursor:
        cursor.execute("SELECT salon_jobs_add_follow_up(%s, 'x', '{}', NULL, '{}')", [[other.id]])
        assert cursor.fetchone() == (0,)
    assert (remaining(), FollowUp.objects.count()) == ([], 0)


@pytest.mark.parametrize("own", [False, True])
def test_erasure_of_store_ends_its_jobs(stores: list[UUID], own: bool) -> None:
    """What follows them is enqueued, unless it is of the store."""
    then = tasks.in_store.call(store_id=stores[0]) if own else DONE
    fan_out(tasks.in_store, FanOut(then=then, exclude=stores[1:]))
    tasks.system.enqueue_many([tasks.system.call()], then=tasks.in_store.call(store_id=stores[0]))
    counts = erase_store(stores[0], (), progress=lambda *_: None, using="operator")
    assert (counts["jobs"], counts["follow_ups"]) == (1, 1 + own)
    assert (remaining(), len(follow_ups()), len(jobs("id", "store_id IS NOT NULL"))) == ([], 1 - own, 0)


@pytest.mark.parametrize("then", [tasks.system, "test-system", tasks.system.enqueue])
def test_then_must_be_a_call(database: None, then: Any) -> None:
    message = r"then is the call of a task, such as summarize.call\(day=day\), not"
    with pytest.raises(PayloadInvalid, match=message):
        tasks.system.enqueue_many([tasks.system.call()], then=then)
    with pytest.raises(PayloadInvalid, match=message):
        fan_out(tasks.in_store, FanOut(then=then))


class InATest(TestCase):
    """A test that never commits."""

    databases = {"default"}  # noqa: RUF012 - as Django declares it

    def test_drained_jobs_enqueue_follow_up(self) -> None:
        followed(2)
        assert [job.task for job in drain_jobs()] == ["test-system", "test-system", "test-keyed-system"]


def test_other_jobs_touch_no_follow_up(process_id: int) -> None:
    read = "SELECT seq_scan + idx_scan + n_tup_upd FROM pg_stat_xact_user_tables WHERE relname = 'salon_jobs_follow_up'"
    tasks.system.enqueue()
    [job] = claim(process_id)
    with transaction.atomic(), connection.cursor() as cursor:
        before = cursor.execute(read).fetchone()
        run(job, process_id)
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert cursor.execute(read).fetchone() == before
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert cursor.fetchone() == (0,)
