"""Shows that ordered jobs of a key run one by one in the order enqueued, whatever becomes of them and their callers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.db import DataError, OperationalError, ProgrammingError, connection, connections, transaction
from django.test import TestCase
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from salon_jobs import Discard, Snooze, enqueue_job, flow, tenant_context
from salon_jobs.core.errors import FlowInvalid, OptionInvalid
from salon_jobs.db import statements
from salon_jobs.erasure import erase_store
from salon_jobs.jobs import control
from salon_jobs.jobs.ordered import place_in_order
from salon_jobs.jobs.pruning import Pruner
from salon_jobs.jobs.task import Call
from salon_jobs.models import Job, OrderedJob, OrderedKey
from salon_jobs.testing import drain_jobs
from salon_jobs.worker.maintenance import Maintenance
from tests import tasks
from tests.jobs.rows import count, due
from tests.support import (
    be_silent,
    behind_transaction,
    change,
    claim,
    elsewhere,
    finish,
    finish_many,
    in_thread,
    job_row,
    rescuer,
    row_of,
    run,
    run_due,
    seen,
    wait_until_waiting,
)
from tests.tasks import Hook, Hooks, raises
from tests.waiting import LIMIT_S

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def add(customer: str = "a", number: int = 0, **options: Any) -> int:
    return tasks.ordered.using(**options).enqueue(customer, number).id


fail, discard, snooze = raises(OSError), raises(Discard("no")), raises(Snooze(timedelta(hours=1)))


def is_clean() -> bool:
    return not OrderedKey.objects.exists() and not OrderedJob.objects.exists()


class Model:
    """What jobs of one key must do, told one thing at a time."""

    def __init__(self) -> None:
        self.turn: int | None = None
        self.waiting: set[int] = set()
        self.states: dict[int, str] = {}

    def add(self, job_id: int) -> None:
        self.states[job_id] = "queued"
        if self.turn is None:
            self.turn = job_id
        elif self.turn != job_id:
            self.waiting.add(job_id)

    def end(self, job_id: int, state: str) -> None:
        self.states[job_id] = state
        self.waiting.discard(job_id)
        if self.turn == job_id and state != "held back":
            self.turn = min(self.waiting, default=None)
            self.waiting.discard(self.turn or 0)

    @property
    def due(self) -> set[int]:
        return {self.turn} if self.turn and self.states[self.turn] == "queued" else set()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "succeed", "fail", "discard", "snooze", "cancel", "retry", "delete"]),
        st.integers(0, 30),
    ),
    min_size=5,
    max_size=20,
)
HOW: dict[str, Hook] = {"succeed": lambda **_: None, "fail": fail, "discard": discard, "snooze": snooze}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
# Graphile Worker's issue 621: the next job does not overtake one that has failed and is retried.
@example(skips=False, steps=[("add", 1), ("fail", 0), ("retry", 0), ("succeed", 0), ("succeed", 0)])
@example(skips=False, steps=[("add", 1), ("fail", 0), ("cancel", 0), ("succeed", 0)])
@example(skips=False, steps=[("add", 1), ("fail", 0), ("delete", 0), ("succeed", 0)])
@example(skips=True, steps=[("add", 2), ("fail", 0), ("retry", 0), *[("succeed", 0)] * 3])
@given(skips=st.booleans(), steps=STEPS)
def test_any_order_behaves_like_model(process_id: int, hooks: Hooks, skips: bool, steps: Any) -> None:
    change("DELETE FROM salon_jobs_job")
    assert is_clean()
    model, enqueued = Model(), tasks.ordered_skip if skips else tasks.ordered
    for verb, number in steps:
        ended = [job_id for job_id, state in model.states.items() if state not in ("queued", "gone")]
        live = [job_id for job_id, state in model.states.items() if state in ("queued", "held back")]
        if verb == "add":
            with transaction.atomic():
                for _ in range(1 + number % 3):
                    model.add(enqueued.enqueue().id)
        elif verb == "cancel" and live:
            control.cancel_jobs(chosen := live[number % len(live)])
            model.end(chosen, "cancelled")
        elif verb == "retry" and ended:
            control.retry_jobs(chosen := ended[number % len(ended)])
            model.add(chosen)
        elif verb == "delete" and (known := live + ended):
            change("DELETE FROM salon_jobs_job WHERE id = %s", chosen := known[number % len(known)])
            model.end(chosen, "gone")
        elif verb in HOW and (jobs := claim(process_id)):
            hooks.system = HOW[verb]
            run(jobs[0], process_id)
            change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued' AND run_at < '9999-01-01'")
            failed = "failed" if skips else "held back"
            if verb != "snooze":
                model.end(jobs[0].id, {"succeed": "gone", "fail": failed, "discard": "cancelled"}[verb])
        assert set(due()) == model.due, (verb, steps)
        assert set(OrderedJob.objects.values_list("pk", flat=True)) == model.waiting
        assert list(OrderedKey.objects.values_list("job_id", flat=True)) == ([model.turn] if model.turn else [])


def test_delay_snooze_and_rescue_hold_key(process_id: int, hooks: Hooks) -> None:
    first, second = add(run_at=LATER), add()
    assert due() == []
    change("UPDATE salon_jobs_job SET run_at = now() WHERE id = %s", first)
    hooks.system = snooze
    run_due(process_id)
    assert (due(), row_of(first)["state"]) == ([], "queued")
    change("UPDATE salon_jobs_job SET run_at = now() WHERE id = %s", first)
    assert [job.id for job in claim(process_id)] == [first]
    be_silent(process_id)
    rescuer().run_once()
    assert due() == [first]
    hooks.reset()
    control.cancel_jobs(first)
    assert due() == [second]


def test_waiting_job_keeps_run_at(process_id: int) -> None:
    first, second = add(), add(run_at=LATER)
    run_due(process_id)
    assert (job_row(first), row_of(second)["run_at"]) == (None, LATER)
    assert [job_id for (job_id,) in seen("SELECT job_id FROM salon_jobs_ordered_key")] == [second]


def test_transactions_of_one_key_do_not_wait(process_id: int) -> None:
    """Neither does the end of a job wait for a caller who has enqueued under its key and goes on working."""
    first = add()
    [job] = claim(process_id)
    with transaction.atomic():
        slow = add()
        quick = in_thread(add)
        assert in_thread(partial(finish_many, [job], process_id))
        assert due() == [quick]
    assert (first < slow < quick, due()) == (True, [quick])
    last = add()
    # Of those that wait, the first that was enqueued.
    for following in (slow, last):
        run_due(process_id)
        assert due() == [following]


def test_simultaneous_enqueues_and_end_start_one(process_id: int) -> None:
    for _ in range(5):
        add()
        [job] = claim(process_id)
        with ThreadPoolExecutor(3) as pool:
            each: tuple[Callable[[], Any], ...] = (add, partial(finish_many, [job], process_id), add)
            works: list[Future[Any]] = [elsewhere(pool, work) for work in each]
        first, end, second = (work.result() for work in works)
        assert (bool(end), len(due())) == (True, 1)
        run_due(process_id)
        assert set(due()) < {first, second}
        run_due(process_id)
        assert is_clean()


def test_end_waits_for_commit_of_enqueue(process_id: int) -> None:
    add()
    [job] = claim(process_id)
    with behind_transaction(partial(finish_many, [job], process_id)) as end:
        second = add()
        connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert end.result()
    assert due() == [second]


def test_crossing_keys_do_not_deadlock(process_id: int) -> None:
    def add_in(customers: str) -> None:
        with transaction.atomic():
            for customer in customers:
                add(customer)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            work = [elsewhere(pool, partial(add_in, customers)) for customers in ("abcd", "dcba")]
            assert [each.result(LIMIT_S) for each in work] == [None, None]
    assert len(due()) == 4


def in_flow() -> list[int]:
    with flow("order") as order:
        members = [order.add(tasks.in_flow.call(number)) for number in range(2)]
        order.add(tasks.in_flow.call(), after=members)
    return [member.id for member in members]


def followed(then: Call[...]) -> list[int]:
    return [handle.id for handle in tasks.system.enqueue_many([tasks.system.call()] * 2, then=then)]


def cancel(*ids: int) -> None:
    """Cancel jobs in one transaction, in this order."""
    with transaction.atomic():
        for job_id in ids:
            control.cancel_jobs(job_id)


def two_keys() -> tuple[int, int]:
    """Return the jobs whose turn it is under two keys, in the order of their locks; after each, another one waits."""
    for customer in "aabb":
        add(customer)
    low, high = (turn for (turn,) in seen("SELECT job_id FROM salon_jobs_ordered_key ORDER BY id"))
    return low, high


@pytest.mark.parametrize("enqueue_others", [in_flow, partial(followed, tasks.system.call())])
def test_crossing_ends_do_not_deadlock(process_id: int, enqueue_others: Callable[[], list[int]]) -> None:
    """A third transaction holds a key until each of the two has, or waits for, what it takes first."""
    others = enqueue_others()
    low, high = two_keys()
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic(using="owner"):
            seen("SELECT FROM salon_jobs_ordered_key WHERE job_id = %s FOR UPDATE", high)
            ends = [elsewhere(pool, partial(cancel, low, high, others[0]))]
            wait_until_waiting()
            ends.append(elsewhere(pool, partial(cancel, others[1], low + 1)))
            wait_until_waiting(2)
        assert [end.result(LIMIT_S) for end in ends] == [None, None]
    assert high + 1 in due()


def test_keys_are_taken_after_follow_ups(process_id: int) -> None:
    """What follows can be ordered, too: its key would be taken after others that come later in the order."""
    low, high = two_keys()
    others = followed(tasks.ordered.call(row_of(low)["concurrency_key"]))
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic(using="owner"):
            seen("SELECT FROM salon_jobs_follow_up FOR UPDATE")
            end = elsewhere(pool, partial(cancel, high, *others))
            wait_until_waiting()
            assert in_thread(partial(cancel, low, high + 1)) is None
        assert end.result(LIMIT_S) is None
    assert due() == [low + 1]
    run_due(process_id)
    assert len(due()) == 1
    run_due(process_id)
    assert is_clean()


def test_end_with_older_snapshot_fails(process_id: int) -> None:
    """It would lose the start of the next job."""
    first = add()

    def end_before_the_second_came() -> None:
        with transaction.atomic(using="owner"):
            change("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            change("DELETE FROM salon_jobs_job WHERE id = %s", first)
            in_thread(add)

    with pytest.raises(OperationalError, match="could not serialize"):
        end_before_the_second_came()
    assert due() == [first]


def test_rollback_leaves_nothing(process_id: int) -> None:
    with transaction.atomic():
        kept = add()
        with transaction.atomic():
            gone = add()
            transaction.set_rollback(True)
    with transaction.atomic():
        control.cancel_jobs(kept)
        add()
        transaction.set_rollback(True)
    assert (due(), job_row(gone), OrderedJob.objects.count()) == ([kept], None, 0)


@pytest.mark.parametrize("commits", [True, False])
def test_locked_next_job_is_not_passed_over(process_id: int, commits: bool) -> None:
    """Its holder starts the next at the commit; should that be rolled back, maintenance does."""
    first, second, third = add(), add(), add()
    [job] = claim(process_id)
    with transaction.atomic():
        control.cancel_jobs(second)
        assert in_thread(partial(finish_many, [job], process_id))
        assert (due(), OrderedKey.objects.get().job_id) == ([], 0)
        place = place_in_order(Job.objects.get(pk=third), using="default")
        assert place is not None
        assert place.turn is None
        transaction.set_rollback(not commits)
    if not commits:
        assert due() == []
        Maintenance(using="default").poll()
    assert first < due()[0] == (third if commits else second)
    control.cancel_jobs([second, third])
    assert is_clean()


@pytest.fixture
def keyed(process_id: int) -> list[int]:
    """Enqueue jobs of one customer that have keys of their own."""
    return [tasks.ordered_key.enqueue("a", number).id for number in range(3)]


def test_replaced_job_keeps_its_place(process_id: int, keyed: list[int]) -> None:
    first, second, third = keyed
    for mode in ("replace", "preserve_run_at", "unsafe_dedupe"):
        assert tasks.ordered_key.using(job_key_mode=mode).enqueue("a", 1).id == second
        assert due() == [first]
    tasks.ordered_key.using(run_at=LATER).enqueue("a", 1)
    run_due(process_id)
    assert (due(), row_of(second)["run_at"]) == ([], LATER)
    tasks.ordered_key.enqueue("a", 1)
    for following in (second, third):
        assert due() == [following]
        run_due(process_id)


def test_replaced_job_moves_to_another_key(keyed: list[int]) -> None:
    first, second, third = keyed
    assert tasks.ordered_key.using(job_key_mode="preserve_run_at").enqueue("b", 1).id == second
    assert due() == [first, second], "it waits no longer, and begins at once"
    tasks.ordered_key.enqueue("c", 0)
    assert due() == [first, second, third], "the key that it has left goes to the next"
    assert OrderedJob.objects.count() == 0


def test_newer_job_waits_for_superseded_run(process_id: int, hooks: Hooks) -> None:
    tasks.ordered_key.enqueue("a", 1)
    [job] = claim(process_id)
    newer = tasks.ordered_key.enqueue("a", 1).id
    assert due() == []
    hooks.system = fail
    change("UPDATE salon_jobs_job SET max_attempts = 5 WHERE id = %s", job.id)
    run(job, process_id)
    assert (row_of(job.id)["reason"], due()) == ("superseded", [newer])


def test_cancelling_many_starts_none_between_batches(process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BATCH", 2)
    ids = [add(number=number) for number in range(5)]
    started: list[list[int]] = []

    def cancel(name: str, *args: Any, **options: Any) -> Any:
        if name == "operator_cancel":
            started.append(due())
        return statements.rows(name, *args, **options)

    monkeypatch.setattr(control, "statements", SimpleNamespace(rows=cancel))
    assert [result.id for result in control.cancel_jobs(ids)] == ids
    assert (started, is_clean()) == ([ids[:1]] * 3, True)


def test_many_are_ordered_as_given(process_id: int) -> None:
    calls = [tasks.ordered.call(str(number % 3), number) for number in range(900)]
    ids = [handle.id for handle in tasks.ordered.enqueue_many(calls)]
    assert due() == ids[:3]
    finish_many(claim(process_id), process_id)
    assert due() == ids[3:6]
    control.cancel_jobs(ids)
    assert is_clean()
    with pytest.raises(OptionInvalid, match="one by one"):
        tasks.ordered_key.enqueue_many([tasks.ordered_key.call("a", 1)])


def test_follow_ups_and_names_keep_order(process_id: int) -> None:
    first = add("day")
    tasks.ordered.enqueue_many([tasks.ordered.call("b")], then=tasks.ordered.call("day", 2))
    enqueue_job("test-ordered", {"customer": "day", "number": 3})
    finish(claim(process_id)[1], process_id)
    assert (count("salon_jobs_ordered_job"), job_row(first) is not None, due()) == (2, True, [])


def test_jobs_from_sql_may_be_ordered(process_id: int) -> None:
    add_job = "SELECT job_id FROM salon_jobs_add_job('test-system', ordered => %s, concurrency_key => %s)"
    with connection.cursor() as cursor:
        for _ in range(2):
            cursor.execute(add_job, ["strict", "a"])
        for wrong in (["strict", None], ["always", "a"]):
            with pytest.raises(DataError, match="ordered is strict or skip_failed"):
                cursor.execute(add_job, wrong)
    [first] = due()
    control.run_again(first, {"note": "again"})
    assert due() == [first], "like the first one, it is ordered"


def test_first_members_of_flow_may_be_ordered(process_id: int) -> None:
    with flow("order") as order:
        both = [order.add(tasks.ordered.call("a")) for _ in range(2)]
        last = order.add(tasks.in_flow.call(), after=both)
        with pytest.raises(FlowInvalid, match="'test-ordered' is ordered, so after="):
            order.add(tasks.ordered.call("a"), after=both[0])
    for member in (*both, last):
        assert due() == [member.id]
        run_due(process_id)
    assert is_clean()


def test_each_store_has_its_own_order(process_id: int, stores: list[UUID]) -> None:
    one, other = ([tasks.ordered_in_store.enqueue(store, "a", each).id for each in range(2)] for store in stores[:2])
    assert due() == [one[0], other[0]]
    erase_store(stores[0], (), progress=lambda *_: None, using="operator")
    assert due() == [other[0]]
    run_due(process_id)
    assert due() == [other[1]]


def test_web_role_orders_jobs_of_its_store(stores: list[UUID]) -> None:
    add_job = (
        "SELECT salon_jobs_add_job('test-ordered-store', store_id => %s, ordered => 'strict', concurrency_key => 'a')"
    )
    for store_id in stores[:2]:
        with tenant_context(store_id, using="web"), connections["web"].cursor() as cursor:
            for _ in range(2):
                cursor.execute(add_job, [store_id])
    assert len(due()) == 2
    waiting = "SELECT store_id FROM salon_jobs_ordered_job UNION ALL SELECT store_id FROM salon_jobs_ordered_key"
    assert len(seen(waiting)) == 4
    with tenant_context(stores[0], using="web"), connections["web"].cursor() as cursor:
        cursor.execute(waiting)
        assert {store_id for (store_id,) in cursor.fetchall()} == {stores[0]}
    with pytest.raises(ProgrammingError, match="permission denied"), connections["web"].cursor() as cursor:
        cursor.execute("UPDATE salon_jobs_ordered_key SET job_id = 0")


def test_one_transaction_ends_many(database: None) -> None:
    """Also when some of it is taken back."""
    change(
        "INSERT INTO salon_jobs_job (task, payload, concurrency_key, ordered)"
        " SELECT 'test-ordered', '{}', 'k' || n %% 1000, 'strict' FROM generate_series(1, 2000) AS n ORDER BY n"
    )
    assert (len(due()), OrderedJob.objects.count()) == (1000, 1000)
    with transaction.atomic(using="owner"):
        with suppress(ZeroDivisionError), transaction.atomic(using="owner"):
            change("DELETE FROM salon_jobs_job")
            raise ZeroDivisionError
        change("DELETE FROM salon_jobs_job WHERE run_at <= now()")
    assert (len(due()), OrderedJob.objects.count()) == (1000, 0)
    change("DELETE FROM salon_jobs_job")
    assert is_clean()
    assert seen("SELECT count(*) FROM salon_jobs_change") == [(0,)]


def test_failed_job_with_waiters_is_not_pruned(process_id: int, hooks: Hooks) -> None:
    first, second, skipping = add(), add(), tasks.ordered_skip.enqueue().id
    hooks.system = fail
    run_due(process_id)
    change("UPDATE salon_jobs_job SET finished_at = now() - interval '1 year' WHERE state = 'failed'")
    Pruner(using="default").run_once()
    assert (row_of(first)["state"], job_row(skipping), due()) == ("failed", None, [])
    control.cancel_jobs(second)
    Pruner(using="default").run_once()
    assert (job_row(first), is_clean()) == (None, True)


def test_truncated_jobs_hold_nobody_back(process_id: int) -> None:
    """No trigger sees that they are gone."""
    for _ in range(3):
        add()
    change("TRUNCATE salon_jobs_job")
    for following in (add(), add()):
        assert due() == [following]
        run_due(process_id)
    assert is_clean()


class DrainedTest(TestCase):
    """A test in a transaction that is rolled back."""

    def test_drained_jobs_run_in_order(self) -> None:
        tasks.ordered.using(priority=1).enqueue("a", 1)
        tasks.ordered.enqueue_many([tasks.ordered.call("a", number) for number in (2, 3)])
        assert OrderedKey.objects.count() == 0
        ran = drain_jobs()
        assert [job.id for job in ran] == sorted(job.id for job in ran)
        assert (len(ran), is_clean()) == (3, True)


@pytest.mark.parametrize("at_once", [False, True])
def test_end_moves_all_that_job_is_part_of(process_id: int, at_once: bool) -> None:
    """It is ordered, counted for a follow-up of the same key, and of a tick; what is rolled back moves nothing."""
    calls = [tasks.ordered.call("a", number) for number in range(3)]
    jobs = [handle.id for handle in tasks.ordered.enqueue_many(calls, then=tasks.ordered.call("a", 3))]
    change("UPDATE salon_jobs_job SET tick = now()")
    change(
        "INSERT INTO salon_jobs_cron_tick (entry, tick_at, fired_at, job_id, outcome) "
        "SELECT 'test-' || id, now(), now(), id, '' FROM salon_jobs_job"
    )
    with transaction.atomic(), connection.cursor() as cursor:
        if at_once:
            statements.execute("count_ends_at_once", using="default")
        with suppress(OSError), transaction.atomic():
            cursor.execute("DELETE FROM salon_jobs_job")
            raise OSError
        cursor.execute("DELETE FROM salon_jobs_job WHERE id = %s", [jobs[0]])
    ends = "SELECT outcome FROM salon_jobs_cron_tick ORDER BY job_id"
    assert (due(), seen("SELECT remaining FROM salon_jobs_follow_up")) == ([jobs[1]], [(2,)])
    assert seen(ends) == [("deleted",), ("",), ("",)]
    run_due(process_id)
    change("UPDATE salon_jobs_job SET state = 'cancelled', finished_at = now() WHERE id = %s", jobs[2])
    assert seen("SELECT id, payload->>'number' FROM salon_jobs_job WHERE state = 'queued'") == [(due()[0], "3")]
    assert seen(ends) == [("deleted",), ("succeeded",), ("",)]
    run_due(process_id)
    change("DELETE FROM salon_jobs_job")
    assert (is_clean(), seen(ends)[2]) == (True, ("cancelled",))
