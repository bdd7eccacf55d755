"""Steps and cursors run once, roll back alone, and refuse a run that lost its lease."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
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
from tests.support import another_process, behind_transaction, change, claim, in_thread, run, running_job, seen
from tests.worker.effects import write, written
from tests.worker.work import JOBS, Work, make_due, shown_to_people

STEPS = "SELECT name, value::text, position, ended, attempt FROM salon_jobs_job_step ORDER BY id"
STEPS_OF = "SELECT job_id FROM salon_jobs_job_step ORDER BY 1"


@dataclass
class Receipt:
    """What a step returns."""

    number: int
    at: timedelta


def pay(number: int, *, minutes: int = 0) -> Receipt:
    """Write, and return what has a type of its own."""
    write(f"paid {number}")
    return Receipt(number, timedelta(minutes=minutes))


def outcome(work: Work, handler: Callable[..., object], **given: Any) -> type[object]:
    """Run a job with steps, and return how it ended."""
    return type(work.run(handler, tasks.outside, **given))


def test_step_runs_once(work: Work) -> None:
    """Later attempts get its result, and the first one gets what they will get."""
    results: list[object] = []

    def body(**_: object) -> None:
        job = current_job()
        results.append(job.step("charge", pay, 7, minutes=2))
        results.append(job.step("note", lambda: ["a", ("b", 1)]))
        if job.attempt < 3:
            raise OSError
        job.step("end", write, "end")

    kept = [("charge", '{"at": "PT120S", "number": 7}', None, True, 1), ("note", '["a", ["b", 1]]', None, True, 1)]
    assert outcome(work, body) is Errored
    assert (written(), seen(STEPS)) == (["paid 7"], kept)
    assert type(work.again()) is Errored
    assert (written(), seen(STEPS)) == (["paid 7"], kept)
    assert type(work.again()) is Succeeded
    assert results == 3 * [Receipt(7, timedelta(minutes=2)), ["a", ["b", 1]]]
    assert written() == ["end", "paid 7"]


def test_failed_step_can_be_retried(work: Work) -> None:
    def half() -> None:
        write("half")
        raise ValueError("half")

    def body(**_: object) -> None:
        with pytest.raises(ValueError, match="half"):
            current_job().step("pay", half)
        assert (written(), seen(STEPS)) == ([], [])
        current_job().step("pay", write, "whole")
        raise Snooze(timedelta(0))

    assert outcome(work, body) is Snoozed
    assert written() == ["whole"]
    work.hooks.store = lambda **_: current_job().step("pay", write, "again")
    assert type(work.again()) is Succeeded
    assert written() == ["whole"], "a snooze keeps the steps"


def test_step_of_system_task(work: Work) -> None:
    """It is one transaction too."""
    calls: list[int] = []

    def enqueue(number: int) -> int:
        calls.append(number)
        return tasks.system.using(priority=5).enqueue(note=f"from {number}").id

    def body(note: str) -> None:
        if note == "first":
            current_job().step("enqueue", enqueue, 1)
            with pytest.raises(ZeroDivisionError):
                current_job().step("divide", lambda: enqueue(2) / 0)
            raise OSError

    work.run(body, tasks.system, note="first")
    assert seen("SELECT payload ->> 'note' FROM salon_jobs_job ORDER BY id") == [("first",), ("from 1",)]
    make_due()
    work.run_due()
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


INSIDE = "cannot begin inside a transaction or another step"
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "in a transaction": (
        transaction.atomic()(lambda: current_job().step("a", write)),
        f"step 'a' {INSIDE}, since it commits its own: call it outside",
    ),
    "in a tenant context": (in_context, f"step 'a' {INSIDE}"),
    "in a step": (lambda: current_job().step("a", lambda: current_job().step("b", write)), f"step 'b' {INSIDE}"),
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
        f"step 'a' {INSIDE}",
    ),
    "a step in a cursor": (
        lambda: [current_job().step("b", write) for _ in current_job().cursor("a", [1])],
        f"step 'b' {INSIDE}",
    ),
    "after finish()": (
        lambda: [current_job().step("a", int, "1"), current_job().step("b", current_job().finish)],
        "step 'b' comes after finish(), which has ended the job: call that last",
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_invalid_step_is_refused(work: Work, how: str) -> None:
    wrong, text = WRONG[how]
    ended = work.run(lambda **_: wrong(), tasks.outside)
    assert isinstance(ended, Errored)
    assert isinstance(ended.error, StepInvalid)
    assert text in str(ended.error)
    assert written() == []
    assert [row[0] for row in seen(STEPS)] == (["a"] if how in ("twice", "after finish()") else [])


@pytest.mark.parametrize("how", ["step", "cursor"])
def test_atomic_task_has_no_steps(work: Work, how: str) -> None:
    def body(**_: object) -> object:
        return current_job().step("a", write) if how == "step" else list(current_job().cursor("a", [1]))

    ended = work.run(body)
    assert isinstance(ended, Errored)
    assert str(ended.error) == (
        "task 'test-store' runs in one transaction, whose rollback would take step 'a' with it: declare the "
        "task with atomic=False"
    )
    assert (written(), seen(STEPS)) == ([], [])


@pytest.mark.parametrize("error", [TransactionBroken, Interrupted])
def test_swallowed_error_commits_no_step(work: Work, error: type[BaseException]) -> None:
    def swallow() -> None:
        write("swallowed")
        if error is Interrupted:
            current_job().run.interrupted_by = Interrupted
            return
        with pytest.raises(DatabaseError), transaction.atomic(savepoint=False):
            Customer.objects.raw("SELECT 1/0 AS id")[0]

    def body(**_: object) -> None:
        with pytest.raises(error) as caught:
            current_job().step("a", swallow)
        raise caught.value

    assert outcome(work, body) is not Succeeded
    assert (written(), seen(STEPS)) == ([], [])


# Two runs of a job


def test_lost_lease_commits_no_step(work: Work) -> None:
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

    assert outcome(work, body) is Lost
    assert written() == ["before"]
    assert isinstance(in_thread(lambda: run(again[0], other)), Succeeded)
    assert written() == ["before", "new"]


@pytest.mark.parametrize("first", ["the step", "the rescue"])
def test_step_and_lost_lease_in_turn(work: Work, first: str) -> None:
    """Of two transactions at the same time the second waits, and sees what the first has done."""
    job = work.claim_one(declared=tasks.outside)
    values = {"name": "a", "attempt": 1, "value": "1", "position": None, "ended": True, "took_s": 0.0}
    done: list[Callable[[], object]] = [
        lambda: work.leases.save_step(job, **values),
        lambda: work.leases.requeue([(job.id, job.lease)]),
    ]
    step_is_first = first == "the step"
    with behind_transaction(done[step_is_first]) as waiting:
        assert done[not step_is_first]()
    assert (waiting.result() is False) is not step_is_first
    assert [row[0] for row in seen(STEPS)] == ["a"] * step_is_first, "and the next run, claimed after it, sees it"
    assert [each.id for each in claim(another_process())] == [job.id]


# Cursors


def pages_after(last: int | None) -> Iterator[int]:
    """Return the numbers after the last one, up to 6."""
    yield from range(1 if last is None else last + 1, 7)


@pytest.mark.parametrize("elements", [list(range(1, 7)), pages_after], ids=["by number", "after the last"])
def test_cursor_resumes_after_committed_element(work: Work, elements: Any) -> None:
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

    work.add(body, tasks.outside.using(max_attempts=9))
    for attempt, done in enumerate((1, 3, 5), 1):
        assert type(work.again()) is Errored
        assert written() == [str(number) for number in range(1, done + 1)]
        last = str(done) if elements is pages_after else "null"
        assert seen(STEPS) == [("import", last, done, False, attempt)]
    assert type(work.again()) is Snoozed
    assert begun == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    work.hooks.store = lambda **_: begun.extend(current_job().cursor("import", elements))
    assert type(work.again()) is Succeeded
    assert len(begun) == 9, "a cursor that has come to its end asks for no element"
    assert written() == [*"123456", "end"]


def rename_rows() -> None:
    """Read the rows of the store, each in the transaction of its element."""

    def named_after(last: str | None) -> Iterator[str]:
        yield from Customer.objects.filter(name__gt=last or "").order_by("name").values_list("name", flat=True)

    current_job().step("fill", lambda: [*map(write, "abc")])
    for name in current_job().cursor("rename", named_after):
        Customer.objects.filter(name=name).update(name=name.upper())


def catch_error_outside() -> None:
    try:
        for number in current_job().cursor("import", [1, 2]):
            write(f"{number}")
            raise OSError
    except OSError:
        current_job().step("say", write, "failed")  # in no transaction that the loop left open


def go_on_after_break() -> None:
    for number in current_job().cursor("import", [1, 2, 3]):
        write(f"{number}")
        if number == 2:
            break
    assert written() == ["1"], "break leaves the element to be done again"
    for number in current_job().cursor("import", [1, 2, 3]):
        write(f"{number}")


@pytest.mark.parametrize(
    ("loop", "effects"), [(rename_rows, "ABC"), (catch_error_outside, ["failed"]), (go_on_after_break, "123")]
)
def test_loops_over_cursors(work: Work, loop: Callable[[], None], effects: Sequence[str]) -> None:
    assert outcome(work, lambda **_: loop()) is Succeeded
    assert written() == [*effects]


@pytest.mark.parametrize("holds", [False, True], ids=["in the loop", "in a variable"])
def test_error_in_loop_rolls_back_element(work: Work, holds: bool) -> None:
    loops: list[Any] = []

    def body(store_id: object, number: int) -> None:
        loop = current_job().cursor("import", [1, 2, 3])
        loops.extend([loop] if holds else [])
        for each in loop:
            write(f"{each} of {number}")
            if each == 2:
                raise OSError

    for number in (1, 2):
        work.add(body, tasks.outside, number=number)
    assert [type(ended) for ended in work.run_due()] == [Errored, Errored]
    loops.clear()
    assert written() == ["1 of 1", "1 of 2"]
    assert [row[2] for row in seen(STEPS)] == [1, 1]


class HostTests(TestCase):
    """Tests of a host, which run inside a transaction that never commits."""

    databases = {"default"}  # noqa: RUF012

    def test_steps_in_a_test_case(self) -> None:
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
        self.addCleanup(tasks.hooks.reset)
        tasks.system.enqueue()
        drain_jobs(raise_errors=False, now=datetime.now(UTC) + timedelta(days=1))
        assert calls == [0, 10, 0, 20]


def test_name_keeps_its_kind(work: Work) -> None:
    said: list[str] = []

    def first(**_: object) -> None:
        current_job().step("step", int, 3)
        for number in current_job().cursor("numbers", [1, 2]):
            if number == 2:
                raise OSError

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

    outcome(work, first)
    work.hooks.store = second
    work.again()
    assert said[:3] == [
        "step 'step' is kept as a step: give it another name",
        "step 'numbers' is kept as a cursor: give it another name",
        "cursor 'numbers' is kept without its last element: give it another name",
    ]
    assert said[3].startswith("the result of step 'step' does not fit its annotation: Expected `object`, got `int`.")


def test_coroutine_awaits_steps(work: Work) -> None:
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

    assert isinstance(work.run(body, tasks.async_store), Errored)
    assert sorted(seen(STEPS)) == [("ask", '"A"', None, True, 1), ("write", "null", None, True, 1)]
    assert isinstance(work.again(), Succeeded)
    assert (calls, written()) == (["a"], ["written"])


@pytest.mark.parametrize("holds", [False, True], ids=["in the loop", "in a variable"])
def test_error_in_loop_on_coroutines_thread(work: Work, holds: bool) -> None:
    """The turn of that thread rolls the element back, since the event loop must not talk to the database."""
    loops: list[Any] = []

    @sync_to_async
    def go_through() -> None:
        loop = current_job().cursor("import", [1, 2, 3])
        loops.extend([loop] if holds else [])
        for each in loop:
            write(str(each))
            if each == 2 and current_job().attempt == 1:
                raise OSError

    async def body(**_: object) -> None:
        await go_through()

    work.run_on_thread(body, tasks.async_store)
    assert work.events == ["job_retried"]
    assert (written(), [row[2] for row in seen(STEPS)]) == (["1"], [1])
    make_due()
    with work.in_lane(body, tasks.async_store, count=0):
        pass
    loops.clear()
    assert (work.events, written()) == (["job_retried", "job_succeeded"], ["1", "2", "3"])


# What is left


def fail_after_a_step(work: Work, store: int = 0) -> int:
    """Return a failed job with a step."""

    def body(**_: object) -> None:
        current_job().step("charge", write, "charged")
        raise OSError

    job_id = work.add(body, tasks.outside.using(max_attempts=1), store=store)
    work.run_due()
    return job_id


@pytest.mark.parametrize("from_start", [False, True])
@pytest.mark.parametrize("using", ["operator", "web"])
def test_retry_from_step_or_start(work: Work, using: str, from_start: bool) -> None:
    job_id, other = (fail_after_a_step(work, store) for store in (0, 1))
    with tenant_context(work.stores[0], using=using):
        results = control.retry_jobs([job_id, other], from_start=from_start, using=using)
    assert [result.changed for result in results] == [True, using == "operator"]
    left = [] if from_start else [job_id]
    left += [other] if using == "web" or not from_start else []
    assert [row[0] for row in seen(STEPS_OF)] == left
    work.run_due()
    assert len(written()) == 2 + (from_start * (1 if using == "web" else 2))


def test_steps_in_admin_and_terminal(work: Work) -> None:
    """People see them, and choose where a retry begins."""
    job_id = fail_after_a_step(work)
    change(
        "INSERT INTO salon_jobs_job_step"
        " (job_id, store_id, name, attempt, value, position, ended, started_at, committed_at)"
        " VALUES (%s, %s, 'import', 1, 'null', 1200, false, now() - interval '90 s', now())",
        job_id,
        work.stores[0],
    )
    page, shown = shown_to_people(job_id)
    assert "charge · attempt 1 · " in page
    assert re.search(r"import, the first 1,200 · attempt 1 · [^<]* · took 1.5 min", page)
    assert re.search(r"\ncharge · attempt 1 · \S+ .*\nimport, the first 1,200 · attempt 1 · ", shown)
    with signed_in("boss") as client:
        asked = client.post(JOBS, {"action": "retry", "_selected_action": job_id, "index": 0}).content.decode()
        assert "Run again the steps that a job has done" in asked
    steps_of_job = json.loads(terminal("show", str(job_id), "--json")[0])["steps"]
    told = [(step["name"], step["position"], step["ended"]) for step in steps_of_job]
    assert told == [("charge", None, True), ("import", 1200, False)]
    terminal("retry", str(job_id), "--yes")
    assert len(seen(STEPS)) == 2
    change("UPDATE salon_jobs_job SET state = 'cancelled', finished_at = now()")
    terminal("retry", str(job_id), "--yes", "--from-start")
    assert seen(STEPS) == []


@pytest.mark.parametrize("keep", [0, 60], ids=["deleted", "kept"])
@pytest.mark.parametrize("how", ["in its own transaction", "by the finisher"])
def test_steps_are_kept_with_job(work: Work, settings: Any, keep: int, how: str) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": keep}

    def finish(**_: object) -> None:
        current_job().step("charge", write, "charged")
        if how == "in its own transaction":
            with transaction.atomic():
                current_job().finish()

    if how == "by the finisher":
        job = work.claim_one(finish, tasks.outside)
        running = running_job(job, work.process_id)
        plain = running_job(job._replace(id=job.id + 1), work.process_id)
        assert isinstance(execute(running), Succeeded)
        assert running.leases.finish_many([running, plain]) == {job.fence}
    else:
        assert outcome(work, finish) is Succeeded
    assert Pruner(using="default").run_once().deleted["steps"] == (0 if keep else 1)
    assert len(seen(STEPS)) == (1 if keep else 0)
    change("UPDATE salon_jobs_job SET finished_at = now() - interval '1 day'")
    Pruner(using="default").run_once()
    assert (seen(STEPS), seen("SELECT count(*) FROM salon_jobs_job")) == ([], [(0,)])


def test_steps_of_deleted_jobs_are_pruned(work: Work) -> None:
    jobs = [fail_after_a_step(work) for _ in range(3)]
    change("DELETE FROM salon_jobs_job WHERE id <> %s", jobs[1])
    assert Pruner(using="default").run_once().deleted["steps"] == 2
    assert [row[0] for row in seen(STEPS_OF)] == jobs[1:2]


def test_statements_of_steps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with steps reads them by one statement, another by none."""
    ran: list[str] = []

    def watched(name: str, *rest: Any, **named: Any) -> Any:
        ran.append(name)
        return statements.run_raw(name, *rest, **named)

    monkeypatch.setattr(leases, "run_raw", watched)
    monkeypatch.setattr(steps, "run_raw", watched)
    outcome(work, lambda **_: [current_job().step(name, int, 1) for name in "abc"])
    assert [name for name in ran if "step" in name] == ["load_steps", *3 * ["save_step"]]
    ran.clear()
    outcome(work, lambda **_: None)
    assert [name for name in ran if "step" in name] == []
