"""Tests of steps and cursors: what runs once, what is rolled back, what a lost lease refuses, and what is left."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.db.utils import DatabaseError
from django.test import TestCase

from project.salon.models import Customer
from salon_jobs import Snooze, control, current_job, tenant_context
from salon_jobs.core.errors import Interrupted, LeaseLost, StepInvalid, TransactionBroken
from salon_jobs.core.outcomes import Errored, Lost, Snoozed, Succeeded
from salon_jobs.db import statements
from salon_jobs.jobs import leases, steps
from salon_jobs.jobs.pruning import Pruner
from salon_jobs.jobs.steps import MOST_BYTES
from salon_jobs.testing import drain_jobs
from salon_jobs.worker.executor import execute
from tests import tasks
from tests.management.operator import run as terminal
from tests.plans.explain import signed_in
from tests.plans.test_admin_plans import JOBS
from tests.support import (
    another_process,
    change,
    claim,
    elsewhere,
    leases_of,
    run,
    run_due,
    running_job,
    seen,
    wait_until_waiting,
)
from tests.tasks import Hooks
from tests.worker.effects import write, written

STEPS = "SELECT name, value::text, position, ended, attempt FROM salon_jobs_job_step ORDER BY id"


def requeue() -> None:
    """Make the jobs that wait for a retry due."""
    change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued'")


@dataclass
class Receipt:
    """What a step returns."""

    number: int
    at: timedelta


def pay(number: int, *, minutes: int = 0) -> Receipt:
    """Write, and return what has a type of its own."""
    write(f"paid {number}")
    return Receipt(number, timedelta(minutes=minutes))


def test_a_step_runs_once_and_later_attempts_get_its_result(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    results: list[object] = []

    def body(**_: object) -> None:
        job = current_job()
        results.append(job.step("charge", pay, 7, minutes=2))
        results.append(job.step("note", lambda: ["a", ("b", 1)]))
        if job.attempt < 3:
            raise OSError
        job.step("end", write, "end")

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[0])
    for attempt in (1, 2):
        [outcome] = run_due(process_id)
        assert isinstance(outcome, Errored)
        assert written() == ["paid 7"]
        kept = [("charge", '{"at": "PT120S", "number": 7}', None, True, 1), ("note", '["a", ["b", 1]]', None, True, 1)]
        assert seen(STEPS) == kept, attempt
        requeue()
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Succeeded)
    assert results == 3 * [Receipt(7, timedelta(minutes=2)), ["a", ["b", 1]]], "the first run gets what the others do"
    assert written() == ["end", "paid 7"]
    Pruner(using="default").run_once()
    assert seen(STEPS) == [], "pruned with the job"
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_a_failed_step_leaves_nothing_and_may_be_tried_again(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    def half() -> None:
        write("half")
        raise ValueError("half")

    def body(**_: object) -> None:
        with pytest.raises(ValueError, match="half"):
            current_job().step("pay", half)
        assert (written(), seen(STEPS)) == ([], [])
        current_job().step("pay", write, "whole")
        raise Snooze(timedelta(0))

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[0])
    assert isinstance(run_due(process_id)[0], Snoozed)
    assert written() == ["whole"]
    hooks.store = lambda **_: current_job().step("pay", write, "again")
    assert isinstance(run_due(process_id)[0], Succeeded)
    assert written() == ["whole"], "a snooze keeps the steps"


def test_a_step_in_a_system_task_is_one_transaction_too(hooks: Hooks, process_id: int) -> None:
    calls: list[int] = []

    def enqueue(number: int) -> int:
        calls.append(number)
        return tasks.system.using(run_at=None, priority=5).enqueue(note=f"from {number}").id

    def body(note: str) -> None:
        if note == "first":
            current_job().step("enqueue", enqueue, 1)
            with pytest.raises(ZeroDivisionError):
                current_job().step("divide", lambda: enqueue(2) / 0)
            raise OSError

    hooks.system = body
    tasks.system.enqueue(note="first")
    run_due(process_id)
    assert seen("SELECT payload ->> 'note' FROM salon_jobs_job ORDER BY id") == [("first",), ("from 1",)]
    requeue()
    run_due(process_id)
    assert calls == [1, 2, 2]


def in_context() -> None:
    store_id = current_job().store_id
    assert store_id is not None
    with tenant_context(store_id):
        current_job().step("a", write)


def _lies() -> int:
    write("lie")
    return "four"  # type: ignore[return-value]


def _unknown() -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    return None


async def _coroutine() -> None:
    raise AssertionError


async def _step_in_a_coroutine() -> None:
    current_job().step("a", write)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "in a transaction": (
        transaction.atomic()(lambda: current_job().step("a", write)),
        "step 'a' cannot begin inside a transaction or another step, since it commits its own: call it outside",
    ),
    "in a tenant context": (in_context, "step 'a' cannot begin inside a transaction or another step"),
    "in a step": (
        lambda: current_job().step("a", lambda: current_job().step("b", write)),
        "step 'b' cannot begin inside a transaction or another step",
    ),
    "twice": (
        lambda: [current_job().step("a", int, "1") for _ in "ab"],
        "this run has done step 'a' already: give each step a name of its own, such as f'a-{id}'",
    ),
    "no name": (lambda: current_job().step("", write), "the name of a step is a text of 1 to 255 characters, not ''"),
    "a name with NUL": (lambda: current_job().step("a\0", write), "the name of a step is a text of 1 to 255"),
    "a long name": (lambda: current_job().step("a" * 256, write), "the name of a step is a text of 1 to 255"),
    "not JSON": (
        lambda: current_job().step("a", partial(Customer, name="a")),
        "step 'a' gave Customer, which cannot be kept as JSON",
    ),
    "too long": (
        lambda: current_job().step("a", lambda: "x" * MOST_BYTES),
        "step 'a' gave 1,000,002 bytes of JSON, and at most 1,000,000 are kept: store the content and return what",
    ),
    "another type": (lambda: current_job().step("a", _lies), "the result of step 'a' does not fit its annotation"),
    "unknown type": (lambda: current_job().step("a", _unknown), "its type is needed at run time"),
    "a coroutine": (
        lambda: current_job().step("a", _coroutine),
        "step 'a' returned something to await: in a coroutine, await job.astep(…)",
    ),
    "in a coroutine": (
        lambda: asyncio.run(_step_in_a_coroutine()),
        "a coroutine awaits job.astep(…), which has no job.step(…) and no job.cursor(…)",
    ),
    "a cursor in a transaction": (
        transaction.atomic()(lambda: list(current_job().cursor("a", [1]))),
        "step 'a' cannot begin inside a transaction or another step",
    ),
    "a step in a cursor": (
        lambda: [current_job().step("b", write) for _ in current_job().cursor("a", [1])],
        "step 'b' cannot begin inside a transaction or another step",
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cannot_be_a_step_says_so_and_leaves_nothing(
    stores: list[UUID], hooks: Hooks, process_id: int, how: str
) -> None:
    wrong, text = WRONG[how]
    hooks.store = lambda **_: wrong()
    tasks.outside.enqueue(store_id=stores[0])
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Errored)
    assert isinstance(outcome.error, StepInvalid)
    assert text in str(outcome.error)
    assert written() == []
    assert [row[0] for row in seen(STEPS)] == (["a"] if how == "twice" else [])


def test_a_store_task_in_one_transaction_has_no_steps(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    for use in (lambda: current_job().step("a", write), lambda: list(current_job().cursor("a", [1]))):
        hooks.store = lambda use=use, **_: use()
        tasks.in_store.enqueue(store_id=stores[0])
        [outcome] = run_due(process_id)
        assert isinstance(outcome, Errored)
        assert str(outcome.error) == (
            "task 'test-store' runs in one transaction, whose rollback would take step 'a' with it: declare the "
            "task with atomic=False"
        )
        change("DELETE FROM salon_jobs_job")
    assert (written(), seen(STEPS)) == ([], [])


def test_a_swallowed_error_or_interrupt_commits_no_step(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    def swallow_error() -> None:
        write("swallowed")
        with pytest.raises(DatabaseError), transaction.atomic(savepoint=False):
            Customer.objects.raw("SELECT 1/0 AS id")[0]

    def swallow_interrupt() -> None:
        write("swallowed")
        current_job().interrupted_by = Interrupted

    for swallow, error in ((swallow_error, TransactionBroken), (swallow_interrupt, Interrupted)):
        caught: list[type[BaseException]] = []

        def body(swallow: Any = swallow, caught: Any = caught, **_: object) -> None:
            try:
                current_job().step("a", swallow)
            except BaseException as raised:
                caught.append(type(raised))
                raise

        hooks.store = body
        tasks.outside.enqueue(store_id=stores[0])
        run_due(process_id)
        assert caught == [error]
        assert (written(), seen(STEPS)) == ([], [])


# Two runs of a job


def test_a_run_that_lost_its_lease_commits_no_step(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    again: list[Any] = []
    other = another_process()

    def body(**_: object) -> None:
        if not again:
            current_job().step("before", write, "before")
            change("UPDATE salon_jobs_job SET state = 'queued', leased_by = NULL, lease = 0, run_at = now()")
            again.append(claim(other)[0])
            with pytest.raises(LeaseLost):
                current_job().step("charge", write, "old")
            with pytest.raises(LeaseLost):
                list(map(write, current_job().cursor("import", "ab")))
            current_job().step("late", write, "late")
        else:
            current_job().step("before", write, "twice")
            current_job().step("charge", write, "new")

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[0])
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Lost)
    assert written() == ["before"]
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(elsewhere(pool, lambda: run(again[0], other)).result(20), Succeeded)
    assert written() == ["before", "new"]


@pytest.mark.parametrize("first", ["the step", "the rescue"])
def test_a_step_and_the_loss_of_its_lease_wait_for_each_other(
    stores: list[UUID], hooks: Hooks, process_id: int, first: str
) -> None:
    """Of two transactions at the same time the second waits, and sees what the first has done."""
    [handle] = [tasks.outside.enqueue(store_id=stores[0])]
    [job] = claim(process_id)
    own = leases_of(process_id)
    values = {"name": "a", "attempt": 1, "value": "1", "position": None, "ended": True, "took_s": 0.0}
    other = another_process()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            if first == "the step":
                assert own.save_step(job, **values)
                waiting: Any = elsewhere(pool, lambda: leases_of(process_id).requeue([(job.id, job.lease)]))
            else:
                assert own.requeue([(job.id, job.lease)])
                waiting = elsewhere(pool, lambda: leases_of(process_id).save_step(job, **values))
            wait_until_waiting()
        if first == "the step":
            waiting.result(20)
            assert [row[0] for row in seen(STEPS)] == ["a"], "and the next run, claimed after it, sees it"
        else:
            assert waiting.result(20) is False
            assert seen(STEPS) == []
    assert [each.id for each in claim(other)] == [handle.id]


# Cursors


def pages_after(last: int | None) -> Iterator[int]:
    """Return the numbers after the last one, up to 6."""
    yield from range(1 if last is None else last + 1, 7)


@pytest.mark.parametrize("elements", [list(range(1, 7)), pages_after], ids=["by number", "after the last"])
def test_a_cursor_goes_on_after_the_last_committed_element(
    stores: list[UUID], hooks: Hooks, process_id: int, elements: Any
) -> None:
    begun: list[int] = []

    def body(**_: object) -> None:
        for number in current_job().cursor("import", elements):
            begun.append(number)
            write(f"{number}")
            if number % 2 == 0 and begun.count(number) == 1:
                raise OSError
        current_job().step("end", write, "end")
        assert seen(STEPS)[0][2:] == (6, True, 4)
        assert list(current_job().cursor("none", ())) == []
        raise Snooze(timedelta(0))

    hooks.store = body
    tasks.outside.using(max_attempts=9).enqueue(store_id=stores[0])
    for attempt, done in enumerate((1, 3, 5), 1):
        assert isinstance(run_due(process_id)[0], Errored)
        assert written() == [str(number) for number in range(1, done + 1)]
        last = str(done) if elements is pages_after else "null"
        assert seen(STEPS) == [("import", last, done, False, attempt)]
        requeue()
    assert isinstance(run_due(process_id)[0], Snoozed)
    assert begun == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    hooks.store = lambda **_: begun.extend(current_job().cursor("import", elements))
    assert isinstance(run_due(process_id)[0], Succeeded)
    assert len(begun) == 9, "a cursor that has come to its end asks for no element"
    assert written() == [*"123456", "end"]


def test_a_cursor_reads_rows_of_the_store_in_the_transaction_of_their_element(
    stores: list[UUID], hooks: Hooks, process_id: int
) -> None:
    names: list[str] = []

    def rows(last: str | None) -> Iterator[str]:
        yield from Customer.objects.filter(name__gt=last or "").order_by("name").values_list("name", flat=True)

    def body(**_: object) -> None:
        current_job().step("fill", lambda: [*map(write, "abc")])
        for name in current_job().cursor("rename", rows):
            Customer.objects.filter(name=name).update(name=name.upper())
            names.append(name)

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[0])
    assert isinstance(run_due(process_id)[0], Succeeded)
    assert (names, written()) == (["a", "b", "c"], ["A", "B", "C"])


@pytest.mark.parametrize("holds", [False, True], ids=["in the loop", "in a variable"])
def test_what_leaves_a_loop_early_rolls_its_element_back(
    stores: list[UUID], hooks: Hooks, process_id: int, holds: bool
) -> None:
    loops: list[Any] = []

    def body(store_id: UUID, number: int) -> None:
        loop = current_job().cursor("import", [1, 2, 3])
        loops.extend([loop] if holds else [])
        for each in loop:
            write(f"{each} of {number}")
            if each == 2:
                raise OSError

    hooks.store = body
    for number in (1, 2):
        tasks.outside.enqueue(store_id=stores[0], number=number)
    assert [type(outcome) for outcome in run_due(process_id)] == [Errored, Errored]
    loops.clear()
    assert written() == ["1 of 1", "1 of 2"]
    assert [row[2] for row in seen(STEPS)] == [1, 1]


def test_an_error_caught_outside_a_loop_leaves_no_transaction(
    stores: list[UUID], hooks: Hooks, process_id: int
) -> None:
    def body(**_: object) -> None:
        try:
            for number in current_job().cursor("import", [1, 2]):
                write(f"{number}")
                raise OSError
        except OSError:
            current_job().step("say", write, "failed")

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[0])
    assert isinstance(run_due(process_id)[0], Succeeded)
    assert written() == ["failed"]


def test_a_step_after_finish_says_so(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    def body(**_: object) -> None:
        current_job().step("a", write, "a")
        current_job().step("b", current_job().finish)

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[0])
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Errored)
    assert str(outcome.error) == "step 'b' comes after finish(), which has ended the job: call that last"
    assert [row[0] for row in seen(STEPS)] == ["a"]


class HostTests(TestCase):
    """Tests of a host, which run inside a transaction that never commits."""

    databases = {"default"}  # noqa: RUF012

    def test_steps_in_a_test_case(self) -> None:
        """Run a job with a step until it succeeds."""
        calls: list[int] = []

        def body(**_: object) -> None:
            job = current_job()
            calls.append(job.step("count", lambda: len(calls)))
            for number in job.cursor("loop", [10, 20]):
                if number == 20 and job.attempt == 1:
                    raise OSError
                calls.append(number)
            if job.attempt == 2:
                with pytest.raises(StepInvalid, match="cannot begin inside a transaction"), transaction.atomic():
                    job.step("inside", int, 1)

        tasks.hooks.system = body
        try:
            tasks.system.enqueue()
            drain_jobs(raise_errors=False, now=datetime.now(UTC) + timedelta(days=1))
        finally:
            tasks.hooks.reset()
        assert calls == [0, 10, 0, 20]


def test_a_loop_that_breaks_may_go_on_later_in_the_same_run(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    def body(**_: object) -> None:
        for number in current_job().cursor("import", [1, 2, 3]):
            write(f"{number}")
            if number == 2:
                break
        assert written() == ["1"], "break leaves the element to be done again"
        for number in current_job().cursor("import", [1, 2, 3]):
            write(f"{number}")

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[0])
    assert isinstance(run_due(process_id)[0], Succeeded)
    assert written() == ["1", "2", "3"]


def test_a_name_is_kept_for_a_step_or_a_cursor(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    def first(**_: object) -> None:
        current_job().step("step", int, 3)
        for number in current_job().cursor("numbers", [1, 2]):
            if number == 2:
                raise OSError

    said: list[str] = []

    def second(**_: object) -> None:
        for use in (
            lambda: list(current_job().cursor("step", [1])),
            lambda: current_job().step("numbers", int, 3),
            lambda: list(current_job().cursor("numbers", pages_after)),
            lambda: current_job().step("step", pay, 3),
        ):
            with pytest.raises(StepInvalid) as caught:
                use()
            said.append(str(caught.value))

    hooks.store = first
    tasks.outside.enqueue(store_id=stores[0])
    run_due(process_id)
    requeue()
    hooks.store = second
    run_due(process_id)
    assert said[:3] == [
        "step 'step' is kept as a step: give it another name",
        "step 'numbers' is kept as a cursor: give it another name",
        "cursor 'numbers' is kept without its last element: give it another name",
    ]
    assert said[3].startswith("the result of step 'step' does not fit its annotation: Expected `object`, got `int`.")


# Coroutines


def test_a_coroutine_awaits_its_steps(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    calls: list[str] = []

    async def ask(word: str) -> str:
        await asyncio.sleep(0)
        calls.append(word)
        return word.upper()

    async def body(**_: object) -> None:
        job = current_job()
        first, second = await asyncio.gather(job.astep("ask", ask, "a"), job.astep("write", write, "written"))
        assert (first, second) == ("A", None)
        with pytest.raises(StepInvalid, match=r"a coroutine awaits job\.astep"):
            job.step("b", write)
        if job.attempt == 1:
            raise OSError

    hooks.coroutine = body
    tasks.async_store.enqueue(store_id=stores[0])
    assert isinstance(run_due(process_id)[0], Errored)
    assert sorted(seen(STEPS)) == [("ask", '"A"', None, True, 1), ("write", "null", None, True, 1)]
    requeue()
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Succeeded), outcome
    assert (calls, written()) == (["a"], ["written"])


# What is left


def fail_after_a_step(hooks: Hooks, store_id: UUID, process_id: int) -> int:
    """Return a failed job with a step."""
    job_id = tasks.outside.using(max_attempts=1).enqueue(store_id=store_id).id

    def body(**_: object) -> None:
        current_job().step("charge", write, "charged")
        raise OSError

    hooks.store = body
    run_due(process_id)
    return job_id


@pytest.mark.parametrize("from_start", [False, True])
@pytest.mark.parametrize("using", ["operator", "web"])
def test_a_retry_goes_on_from_the_step_or_begins_from_the_start(
    stores: list[UUID], hooks: Hooks, process_id: int, using: str, from_start: bool
) -> None:
    job_id, other = (fail_after_a_step(hooks, stores[number], process_id) for number in (0, 1))
    with tenant_context(stores[0], using=using):
        results = control.retry_jobs([job_id, other], from_start=from_start, using=using)
    assert [result.changed for result in results] == [True, using == "operator"]
    left = [] if from_start else [job_id]
    left += [other] if using == "web" or not from_start else []
    assert [row[0] for row in seen("SELECT job_id FROM salon_jobs_job_step ORDER BY 1")] == left
    run_due(process_id)
    assert len(written()) == 2 + (from_start * (1 if using == "web" else 2))


def test_people_see_the_steps_and_choose_where_a_retry_begins(
    stores: list[UUID], hooks: Hooks, process_id: int
) -> None:
    job_id = fail_after_a_step(hooks, stores[0], process_id)
    change(
        "INSERT INTO salon_jobs_job_step"
        " (job_id, store_id, name, attempt, value, position, ended, started_at, committed_at)"
        " VALUES (%s, %s, 'import', 1, 'null', 1200, false, now() - interval '90 s', now())",
        job_id,
        stores[0],
    )
    with signed_in("boss") as client:
        page = client.get(f"{JOBS}{job_id}/change/").content.decode()
        assert "charge · attempt 1 · " in page
        assert re.search(r"import, the first 1,200 · attempt 1 · [^<]* · took 1.5 min", page)
        chosen = {"action": "retry", "_selected_action": job_id, "index": 0}
        asked = client.post(JOBS, chosen).content.decode()
        assert "Run again the steps that a job has done" in asked
    shown = terminal("show", str(job_id))[0]
    assert re.search(r"\ncharge · attempt 1 · \S+ .*\nimport, the first 1,200 · attempt 1 · ", shown)
    steps_of_job = json.loads(terminal("show", str(job_id), "--json")[0])["steps"]
    assert [(step["name"], step["position"], step["ended"]) for step in steps_of_job] == [
        ("charge", None, True),
        ("import", 1200, False),
    ]
    terminal("retry", str(job_id), "--yes")
    assert len(seen(STEPS)) == 2
    change("UPDATE salon_jobs_job SET state = 'cancelled', finished_at = now()")
    terminal("retry", str(job_id), "--yes", "--from-start")
    assert seen(STEPS) == []


@pytest.mark.parametrize("keep", [0, 60], ids=["deleted", "kept"])
@pytest.mark.parametrize("how", ["in its own transaction", "by the finisher"])
def test_steps_are_kept_as_long_as_their_job(
    stores: list[UUID], hooks: Hooks, process_id: int, settings: Any, keep: int, how: str
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": keep}

    def finish(**_: object) -> None:
        current_job().step("charge", write, "charged")
        if how == "in its own transaction":
            with transaction.atomic():
                current_job().finish()

    hooks.store = finish
    tasks.outside.enqueue(store_id=stores[0])
    if how == "by the finisher":
        [job] = claim(process_id)
        finish_in_batch(job, process_id)
    else:
        run_due(process_id)
    assert Pruner(using="default").run_once().deleted["steps"] == (0 if keep else 1)
    assert len(seen(STEPS)) == (1 if keep else 0)
    change("UPDATE salon_jobs_job SET finished_at = now() - interval '1 day'")
    Pruner(using="default").run_once()
    assert (seen(STEPS), seen("SELECT count(*) FROM salon_jobs_job")) == ([], [(0,)])


def finish_in_batch(job: Any, process_id: int) -> None:
    """Run a job, and end it with others as the finisher does."""
    running, plain = running_job(job, process_id), running_job(job._replace(id=job.id + 1), process_id)
    assert isinstance(execute(running), Succeeded)
    assert running.leases.finish_many([running, plain]) == {job.fence}


def test_steps_of_jobs_deleted_by_hand_are_pruned(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    jobs = [fail_after_a_step(hooks, stores[0], process_id) for _ in range(3)]
    change("DELETE FROM salon_jobs_job WHERE id <> %s", jobs[1])
    assert Pruner(using="default").run_once().deleted["steps"] == 2
    assert [row[0] for row in seen("SELECT job_id FROM salon_jobs_job_step ORDER BY 1")] == jobs[1:2]


def test_a_job_with_steps_reads_them_by_one_statement_and_others_by_none(
    stores: list[UUID], hooks: Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def watched(name: str, *rest: Any, **named: Any) -> Any:
        ran.append(name)
        return statements.hot(name, *rest, **named)

    monkeypatch.setattr(leases, "hot", watched)
    monkeypatch.setattr(steps, "hot", watched)
    hooks.store = lambda **_: [current_job().step(name, int, 1) for name in "abc"]
    tasks.outside.enqueue(store_id=stores[0])
    run_due(process_id)
    assert [name for name in ran if "step" in name] == ["load_steps", *3 * ["save_step"]]
    ran.clear()
    hooks.reset()
    tasks.outside.enqueue(store_id=stores[0])
    run_due(process_id)
    assert [name for name in ran if "step" in name] == []
