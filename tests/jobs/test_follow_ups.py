"""Shows that a job is enqueued once others have ended: exactly once, with the last of them, however they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

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
from tests.settings import SALON_JOBS
from tests.support import change, claim, elsewhere, finish_many, leases_of, run, run_due, run_on_threads, seen
from tests.tasks import Hooks

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


def fail(hooks: Hooks, process_id: int) -> None:
    def broken(**_: object) -> None:
        raise OSError

    hooks.system = broken
    change("UPDATE salon_jobs_job SET max_attempts = 1")
    run_due(process_id)


def discard(hooks: Hooks, process_id: int) -> None:
    def discarded(**_: object) -> None:
        raise Discard("no need")

    hooks.system = discarded
    run_due(process_id)


def lose_the_process(process_id: int) -> None:
    jobs = claim(process_id)
    assert jobs
    change("UPDATE salon_jobs_job SET max_attempts = 1, rescues = 2")
    change("DELETE FROM salon_jobs_process")
    leases_of(process_id).rescue("gone")


ENDS: dict[str, Callable[[Hooks, int, int], object]] = {
    "succeeded": lambda hooks, process_id, job_id: run_due(process_id),
    "succeeded and kept": lambda hooks, process_id, job_id: run_due(process_id),
    "failed": lambda hooks, process_id, job_id: fail(hooks, process_id),
    "discarded": lambda hooks, process_id, job_id: discard(hooks, process_id),
    "discarded by an operator": lambda hooks, process_id, job_id: control.discard_jobs(job_id),
    "cancelled": lambda hooks, process_id, job_id: control.cancel_jobs(job_id, using="operator"),
    "expired": lambda hooks, process_id, job_id: expire(process_id),
    "process died": lambda hooks, process_id, job_id: lose_the_process(process_id),
    "deleted": lambda hooks, process_id, job_id: change("DELETE FROM salon_jobs_job WHERE id = %s", job_id),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_last_end_of_any_kind_enqueues_it(hooks: Hooks, process_id: int, end: str) -> None:
    with override_settings(SALON_JOBS={**SALON_JOBS, "RETAIN_SUCCEEDED": DAY if "kept" in end else None}):
        [job_id] = followed(1)
        assert (remaining(), follow_ups()) == ([1], [])
        ENDS[end](hooks, process_id, job_id)
        assert (remaining(), follow_ups()) == ([], [("done", "k:done", None)])
        whose = {"task": "test-system", "jobs": 1, "first": job_id, "last": job_id, "fan_out": None}
        assert Job.objects.get(task="test-keyed-system").follows == whose


def test_each_job_counts_once_however_often_it_is_retried(hooks: Hooks, process_id: int) -> None:
    followed(2)
    hooks.system = lambda note: (_ for _ in ()).throw(Snooze(timedelta(0)) if note == "0" else OSError())
    run_due(process_id)
    assert (remaining(), follow_ups()) == ([2], [])
    hooks.reset()
    change("UPDATE salon_jobs_job SET run_at = now()")
    run_due(process_id)
    assert (remaining(), len(follow_ups())) == ([], 1)


def test_a_worker_that_ends_many_at_once(process_id: int) -> None:
    followed(20)
    followed(20)
    run_on_threads(process_id)
    assert (remaining(), seen("SELECT count(*) FROM salon_jobs_job")) == ([], [(1,)]), "both have the same key"


@contextmanager
def counting_at_once(*ends: Callable[[], object]) -> Generator[list[Future[object]]]:
    """End jobs on connections of their own, which all wait before they count, and then go on at once."""
    key = "hashtextextended('salon_jobs_follow_up', 3)"
    waiters = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    change(f"SELECT pg_advisory_lock({key})")
    with ThreadPoolExecutor(len(ends)) as pool:
        running = [elsewhere(pool, end) for end in ends]
        while seen(waiters) != [(len(ends),)]:
            assert not any(end.done() for end in running)
        yield running
        change(f"SELECT pg_advisory_unlock({key})")


def test_a_worker_waits_its_turn_to_count_them_without_an_error(
    process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that the lock's holders make fail would fill the server's log, and be repeated for each batch."""
    raised: list[Exception] = []

    def hot(*arguments: Any, **options: Any) -> list[Any]:
        try:
            return statements.hot(*arguments, **options)
        except Exception as error:
            raised.append(error)
            raise

    monkeypatch.setattr(leases, "hot", hot)
    followed(2)
    tasks.system.enqueue()
    jobs = claim(process_id)
    with counting_at_once(lambda: finish_many(jobs, process_id)) as [end]:
        time.sleep(0.1)
    assert end.result() == {job.fence for job in jobs}
    assert (raised, remaining(), len(follow_ups())) == ([], [], 1)


def test_connections_that_end_the_last_jobs_of_two_follow_ups_crosswise_at_once(database: None) -> None:
    first, second = followed(2), followed(2)

    def end(*ids: int) -> None:
        with transaction.atomic():
            for job in ids:
                Job.objects.filter(pk=job).delete()

    with counting_at_once(lambda: end(first[0], second[0]), lambda: end(second[1], first[1])) as ends:
        pass
    assert [each.result() for each in ends] == [None, None]
    assert (remaining(), len(follow_ups())) == ([], 1), "both have the same key"


def test_a_transaction_that_ends_many_looks_for_each_follow_up_once(database: None) -> None:
    scans = "SELECT coalesce(idx_scan, 0) FROM pg_stat_xact_user_tables WHERE relname = 'salon_jobs_follow_up'"
    first, second = followed(50), followed(50)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(scans)
        [before] = cursor.fetchone()
        for pair in zip(first[1:], second[1:], strict=True):
            cursor.execute("DELETE FROM salon_jobs_job WHERE id = ANY (%s)", [list(pair)])
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(scans)
        assert cursor.fetchone() == (before + 2,)
    assert remaining() == [1, 1]


def test_what_a_savepoint_takes_back_is_not_counted(database: None) -> None:
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
def test_a_key_that_an_open_transaction_holds_holds_up_no_end(
    process_id: int, monkeypatch: pytest.MonkeyPatch, mode: Any, commits: bool
) -> None:
    held, other = followed(1), tasks.system.enqueue_many([tasks.system.call()], then=tasks.system.call(note="other"))
    change(
        "UPDATE salon_jobs_follow_up SET options = options || %s WHERE options ? 'job_key'",
        f'{{"job_key_mode": "{mode}"}}',
    )
    ends, work = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            tasks.keyed_system.enqueue(note="done")
            work.set()
            assert ends.wait(10)
            transaction.set_rollback(not commits)

    with ThreadPoolExecutor(1) as pool:
        holder = elsewhere(pool, hold)
        assert work.wait(10)
        for job_id in (*held, other[0].id):
            change("DELETE FROM salon_jobs_job WHERE id = %s", job_id)
        assert remaining() == [0], "the job of the other is enqueued"
        maintenance = Maintenance(using="default")
        maintenance.poll()
        assert remaining() == [0]
        ends.set()
        holder.result(10)
    monkeypatch.setattr(maintenance, "_inspect_at", 0.0)
    maintenance.poll()
    assert (remaining(), follow_ups()) == ([], [("done", "k:done", None)])
    maintenance.poll()
    assert len(follow_ups()) == 1


def test_however_many_wait_for_a_held_key_maintenance_soon_goes_on(process_id: int) -> None:
    with transaction.atomic():
        tasks.keyed_system.enqueue(note="done")
        change(
            "INSERT INTO salon_jobs_follow_up"
            " (task, payload, options, remaining)"
            " SELECT 'test-keyed-system', '{}', '{\"job_key\": \"k:done\"}', 0 FROM generate_series(1, 100)"
        )
        with ThreadPoolExecutor(1) as pool:
            began = time.monotonic()
            elsewhere(pool, lambda: Maintenance(using="default").poll()).result(60)
            assert time.monotonic() - began < 20, "without waiting for the key once for each"
        assert len(remaining()) == 100
    for _ in range(20):  # half a second each
        Maintenance(using="default").poll()
        if remaining() == []:
            break
    assert remaining() == []


def test_a_retry_by_hand_is_waited_for_until_it_is_enqueued_and_never_enqueues_it_again(process_id: int) -> None:
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


def test_the_pruning_of_ended_jobs_does_not_count(database: None) -> None:
    first, _ = followed(2)
    control.cancel_jobs([first])
    change("DELETE FROM salon_jobs_job WHERE id = %s", first)
    assert (remaining(), follow_ups()) == ([1], [])


def test_no_jobs_enqueue_it_at_once(stores: list[UUID]) -> None:
    assert followed(0) == []
    assert (remaining(), len(follow_ups())) == ([], 1)
    fan_out(tasks.in_store, FanOut(then=tasks.keyed_system.call(note="no stores"), exclude=stores))
    assert (remaining(), len(follow_ups())) == ([], 2)


def test_jobs_that_wait_under_their_key_are_waited_for_unless_they_run_or_have_a_follow_up(process_id: int) -> None:
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


def test_it_has_its_tasks_options_and_key_as_if_it_were_enqueued(process_id: int) -> None:
    waiting = tasks.keyed_system.using(run_in=timedelta(hours=1)).enqueue(note="done")
    followed(1)
    run_due(process_id)
    assert seen("SELECT id, run_at <= now() FROM salon_jobs_job") == [(waiting.id, True)]


def test_store_jobs_and_a_follow_up_of_a_store(stores: list[UUID], process_id: int) -> None:
    then = tasks.in_store.call(store_id=stores[2], number=9)
    result = async_to_sync(afan_out)(tasks.in_store, FanOut(then=then), number=1)
    assert (result.inserted, remaining()) == (3, [3])
    run_due(process_id)
    assert remaining() == []
    assert seen("SELECT store_id, payload->>'number' FROM salon_jobs_job") == [(stores[2], "9")]
    assert fan_out_progress(result.id).done == 3


@pytest.fixture
def as_web() -> Iterator[None]:
    with override_settings(SALON_JOBS={**SALON_JOBS, "DATABASE": "web"}):
        yield


@pytest.mark.usefixtures("as_web")
def test_the_web_role_gives_follow_ups_to_its_store_and_to_no_store(stores: list[UUID]) -> None:
    own, other = (tasks.in_store.call(store_id=store) for store in stores[:2])
    with tenant_context(stores[0], using="web"):
        for then in (own, DONE):
            tasks.in_store.enqueue_many([own], then=then)
        with pytest.raises(EnqueueRefused, match="salon_jobs_add_follow_up: store_id is not the current store"):
            tasks.in_store.enqueue_many([own], then=other)
    assert remaining() == [1, 1]
    ids = [row[0] for row in seen("SELECT id FROM salon_jobs_job ORDER BY id")]
    with tenant_context(stores[0], using="web"):
        control.cancel_jobs(ids, using="web")
    assert remaining() == []
    assert follow_ups() == [("done", "k:done", None)]


def test_the_web_role_ends_the_last_job_before_one_of_another_store(stores: list[UUID]) -> None:
    fan_out(tasks.in_store, FanOut(then=tasks.keyed.call(store_id=stores[2], number=7), exclude=stores[1:]))
    [(job_id,)] = seen("SELECT id FROM salon_jobs_job")
    with tenant_context(stores[0], using="web"):
        control.cancel_jobs(job_id, using="web")
    assert seen("SELECT store_id, job_key FROM salon_jobs_job WHERE state = 'queued'") == [(stores[2], "k:7")]


def test_the_web_role_cannot_make_other_stores_jobs_belong_to_its_follow_up(stores: list[UUID]) -> None:
    other = tasks.in_store.enqueue(store_id=stores[1])
    with tenant_context(stores[0], using="web"), connections["web"].cursor() as cursor:
        cursor.execute("SELECT salon_jobs_add_follow_up(%s, 'x', '{}', NULL, '{}')", [[other.id]])
        assert cursor.fetchone() == (0,)
    assert (remaining(), FollowUp.objects.count()) == ([], 0)


def test_the_erasure_of_a_store_ends_its_jobs_and_deletes_its_follow_ups(stores: list[UUID]) -> None:
    fan_out(tasks.in_store, FanOut(then=DONE, exclude=stores[1:]))
    tasks.system.enqueue_many([tasks.system.call()], then=tasks.in_store.call(store_id=stores[0]))
    counts = erase_store(stores[0], (), progress=lambda *_: None, using="operator")
    assert counts["follow_ups"] == 1
    assert (remaining(), len(follow_ups())) == ([], 1)


def test_the_erasure_of_a_store_enqueues_no_job_of_it(stores: list[UUID]) -> None:
    then = tasks.in_store.call(store_id=stores[0])
    fan_out(tasks.in_store, FanOut(then=then, exclude=stores[1:]))
    counts = erase_store(stores[0], (), progress=lambda *_: None, using="operator")
    assert (counts["jobs"], counts["follow_ups"]) == (1, 1)
    assert seen("SELECT * FROM salon_jobs_job") == []


@pytest.mark.parametrize("then", [tasks.system, "test-system", tasks.system.enqueue])
def test_what_is_no_call_is_refused(database: None, then: Any) -> None:
    with pytest.raises(PayloadInvalid, match=r"then is the call of a task, such as summarize.call\(day=day\), not"):
        tasks.system.enqueue_many([tasks.system.call()], then=then)
    with pytest.raises(PayloadInvalid, match="then is the call"):
        fan_out(tasks.in_store, FanOut(then=then))


class InATest(TestCase):
    """A test that never commits."""

    databases = {"default"}  # noqa: RUF012 - as Django declares it

    def test_drained_jobs_enqueue_it(self) -> None:
        followed(2)
        assert [job.task for job in drain_jobs()] == ["test-system", "test-system", "test-keyed-system"]


def test_jobs_without_a_follow_up_touch_nothing_of_it(process_id: int) -> None:
    read = "SELECT seq_scan + idx_scan + n_tup_upd FROM pg_stat_xact_user_tables WHERE relname = 'salon_jobs_follow_up'"
    tasks.system.enqueue()
    [job] = claim(process_id)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(read)
        before = cursor.fetchone()
        run(job, process_id)
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(read)
        assert cursor.fetchone() == before
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert cursor.fetchone() == (0,)
