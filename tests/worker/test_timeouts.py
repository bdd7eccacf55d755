"""Tests that a run, and a wait, that takes too long ends, alone, and how its row and the log tell it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction

from salon_jobs import Snooze, current_job
from salon_jobs.admin import job as job_page
from salon_jobs.core import tracing
from salon_jobs.core.errors import Expired, Interrupted, OptionInvalid, TimedOut
from salon_jobs.core.outcomes import NotStarted, Outcome, Succeeded
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.options import Timeouts
from salon_jobs.jobs.statistics import TaskStatistics
from salon_jobs.models import Job
from salon_jobs.worker import ends, executor
from salon_jobs.worker import runner as runner_module
from salon_jobs.worker.runner import Runner
from salon_jobs.worker.supervisor import RunTotals
from tests import tasks
from tests.metrics import of, shown
from tests.support import (
    change,
    claim,
    event_fields,
    job_row,
    leases_of,
    run_due,
    run_on_threads,
    running_on_a_thread,
    seen,
)
from tests.tracers import RecordingTracer
from tests.waiting import eventually
from tests.worker.conftest import Busy, RunOnThread
from tests.worker.effects import job_events, write, written

SHORT = timedelta(seconds=0.2)
ROWS = "SELECT state, attempts, leased_by FROM salon_jobs_job ORDER BY id"
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%' AND state = 'active'"
ERRORS = "SELECT attempt, error_class, code FROM salon_jobs_job_error ORDER BY id"
TIMED_OUT = (1, "salon_jobs.core.errors.TimedOut", "JOB.TIMED_OUT")
EXPIRED = (1, "salon_jobs.core.errors.Expired", "JOB.EXPIRED")


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the tests' tasks timeouts."""

    def give(**options: Any) -> None:
        for each in (tasks.system, tasks.in_store, tasks.outside):
            monkeypatch.setattr(each, "timeouts", Timeouts(**options))

    return give


def spin(busy: Busy | None = None, **_: object) -> None:
    """Be busy until interrupted."""
    deadline = time.monotonic() + 30
    try:
        if busy is not None:
            busy.set()
        while time.monotonic() < deadline:
            pass
    finally:
        if busy is not None:
            busy.clear()


def sleep_in_a_query(busy: Busy) -> None:
    def wait_until_it_sleeps() -> None:
        eventually(lambda: seen(SLEEPING), [(1,)])
        busy.set()
        connections.close_all()

    threading.Thread(target=wait_until_it_sleeps, daemon=True).start()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")


@pytest.mark.parametrize("body", [spin, sleep_in_a_query])
@pytest.mark.parametrize("declared", [tasks.in_store, tasks.outside])
def test_a_run_that_takes_too_long_is_interrupted_rolled_back_and_retried(
    run_on_thread: RunOnThread,
    stores: list[UUID],
    limit: Any,
    busy: Busy,
    caplog: pytest.LogCaptureFixture,
    body: Callable[[Busy], None],
    declared: Any,
) -> None:
    limit(timeout=SHORT)
    caught: list[BaseException] = []

    def handler(**_: object) -> None:
        with transaction.atomic():
            write()
            try:
                body(busy)
            except BaseException as error:
                caught.append(error)
                raise

    run_on_thread(handler, declared)
    assert seen(ROWS) == [("queued", 1, None)]
    assert seen(ERRORS) == [TIMED_OUT]
    assert "in handler\n" in seen("SELECT traceback FROM salon_jobs_job_error")[0][0]
    assert written() == []
    assert job_events(caplog) == ["job_timed_out", "job_retried"]
    [fields] = event_fields(caplog, "job_timed_out")
    assert {"timeout_s": 0.2, "store_id": stores[0], "code": "JOB.TIMED_OUT"}.items() <= fields.items()
    assert event_fields(caplog, "job_retried")[0]["code"] == "JOB.TIMED_OUT"
    assert seen(SLEEPING) == [(0,)]


def test_an_interrupt_cancels_a_query_that_is_sent_just_then(
    run_on_thread: RunOnThread, monkeypatch: pytest.MonkeyPatch, limit: Any
) -> None:
    limit(timeout=SHORT)
    striking = threading.Event()
    raise_in = runner_module._raise_in

    def late(thread: threading.Thread, kind: type[Interrupted] | None) -> None:
        if kind is not None:
            striking.set()
            eventually(lambda: seen(SLEEPING), [(1,)])
            connections.close_all()
        raise_in(thread, kind)

    def handler(**_: object) -> None:
        assert striking.wait(30)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")

    monkeypatch.setattr(runner_module, "_raise_in", late)
    run_on_thread(handler, tasks.outside)
    assert seen(ERRORS) == [TIMED_OUT]


@pytest.mark.parametrize(
    ("swallowed", "declared"),
    [(BaseException, tasks.in_store), (TimedOut, tasks.outside), (TimedOut, tasks.system), (Exception, tasks.system)],
)
def test_swallowing_it_does_not_look_like_success_and_an_except_for_exceptions_lets_it_pass(
    run_on_thread: RunOnThread, limit: Any, busy: Busy, swallowed: type[BaseException], declared: Any
) -> None:
    limit(timeout=SHORT)
    went_on: list[bool] = []

    def handler(**_: object) -> None:
        with suppress(swallowed):
            spin(busy)
        went_on.append(True)

    run_on_thread(handler, declared)
    assert went_on == [True] * (swallowed is not Exception)
    assert seen(ROWS) == [("queued", 1, None)]
    assert seen(ERRORS) == [TIMED_OUT]


def finish() -> None:
    with transaction.atomic():
        write()
        current_job().finish()


def snooze() -> None:
    raise Snooze(timedelta(minutes=5))


@pytest.mark.parametrize(
    ("before", "after", "rows", "effects"),
    [
        (finish, None, [], ["effect"]),
        (None, finish, [("queued", 1, None)], []),
        (None, snooze, [("queued", 0, None)], []),
    ],
    ids=["finished and committed before", "finishing after raises it again", "another end after"],
)
def test_what_ends_a_run_besides_its_timeout(
    run_on_thread: RunOnThread,
    limit: Any,
    busy: Busy,
    before: Callable[[], None] | None,
    after: Callable[[], None] | None,
    rows: list[Any],
    effects: list[str],
) -> None:
    limit(timeout=SHORT)

    def handler(**_: object) -> None:
        if before:
            before()
        try:
            spin(busy)
        except TimedOut as error:
            if after:
                after()
            raise error from None

    run_on_thread(handler, tasks.outside)
    assert (seen(ROWS), written()) == (rows, effects)
    assert seen(ERRORS) == [TIMED_OUT] * (after is finish)


def test_the_table_shows_when_to_kill_and_an_extension_moves_both_ends(
    database: None, hooks: tasks.Hooks, process_id: int, limit: Any
) -> None:
    limit(timeout=timedelta(seconds=1))
    shown: list[Any] = []
    queue_of: list[Runner] = []

    def handler(note: str) -> None:
        job = current_job()
        began = job.started

        def look() -> tuple[float, float]:
            [run] = queue_of[0]._in_flight.shown()
            assert (run.job_id, run.lease) == (job.id, job.job.lease)
            assert job.deadline is not None
            left_s, run_s = (job.deadline - datetime.now(UTC)).total_seconds(), time.monotonic() - began
            return round(run.kill_at - began, 3), round(left_s + run_s, 1)

        shown.append(look())
        job.extend(timedelta(seconds=60))
        shown.append(look())
        time.sleep(1.1)

    hooks.system = handler
    with running_on_a_thread(process_id, []) as runner:
        queue_of.append(runner)
        tasks.system.enqueue()
        runner._jobs.put(claim(process_id))
        assert runner._jobs.wait_idle(10)
        assert runner._in_flight.shown() == []
    assert shown == [(11.0, 1.0), (71.0, 61.0)]
    assert seen(ERRORS) == []


def test_without_a_timeout_there_is_no_deadline_and_nothing_to_extend(run_on_thread: RunOnThread) -> None:
    got: list[Any] = []

    def handler(**_: object) -> None:
        current_job().extend(timedelta(minutes=1))
        got.append(current_job().deadline)
        for wrong in (timedelta(seconds=-1), timedelta(days=36_501)):
            with pytest.raises(OptionInvalid, match="by must be a timedelta from zero to 36,500 days"):
                current_job().extend(wrong)

    run_on_thread(handler)
    assert got == [None]
    assert seen(ROWS) == []


def test_an_interrupt_after_the_end_of_the_run_hits_nothing(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch, limit: Any
) -> None:
    """The interrupt holds the run's lock when the handler ends; it is raised between the run and its settlement."""
    limit(timeout=timedelta(seconds=1))  # the handler must come to its end before it, on a busy machine too
    striking, ended = threading.Event(), threading.Event()
    raise_in = runner_module._raise_in

    def late(thread: threading.Thread, kind: type[Interrupted] | None) -> None:
        if kind is not None:
            striking.set()
            assert ended.wait(10)
            # The runner can only wait for the lock by now; give it the time to come there.
            time.sleep(0.1)
        raise_in(thread, kind)

    monkeypatch.setattr(runner_module, "_raise_in", late)

    def wait_for_the_interrupt() -> None:
        assert striking.wait(10)
        ended.set()

    def handler(store_id: UUID, number: int) -> None:
        write(f"effect {number}")
        if number == 0:
            transaction.on_commit(wait_for_the_interrupt)

    hooks.store = handler
    for number in range(20):
        tasks.in_store.enqueue(store_id=stores[number % 3], number=number)
    with running_on_a_thread(process_id, claim(process_id)) as runner:
        assert not runner.ended
    assert seen(ROWS) == []
    assert seen(ERRORS) == []
    assert written() == sorted(f"effect {number}" for number in range(20))


# An interrupt can land in a weak reference's callback, where Python can only print it: it is lost, and hits nobody.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_timeouts_at_the_very_end_of_runs_never_hit_another_one(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, limit: Any
) -> None:
    """Every second run ends about when its time is over; the others, of other stores, see nothing of that."""
    limit(timeout=timedelta(seconds=0.02))
    foreign: list[UUID] = []

    def handler(store_id: UUID, number: int, **_: object) -> None:
        job = current_job()
        if job.store_id != store_id:
            foreign.append(store_id)
        write(f"{number}")
        while number % 2 == 0 and time.monotonic() < job.started + 0.018:
            pass

    hooks.store = handler
    count = 60
    for number in range(count):
        (tasks.keyed if number % 2 else tasks.in_store).enqueue(store_id=stores[number % 3], number=number)
    with running_on_a_thread(process_id, claim(process_id, 1000)) as runner:
        assert not runner.ended
    assert foreign == []
    left = {row[0] for row in seen("SELECT (payload->>'number')::int FROM salon_jobs_job")}
    assert all(number % 2 == 0 for number in left)
    assert {int(name) for name in written()} == set(range(count)) - left, "an effect is there when its job is gone"
    assert {row[1:] for row in seen(ERRORS)} <= {TIMED_OUT[1:]}
    assert len(seen(ERRORS)) == len(left)


def due_since(seconds: float) -> None:
    change("UPDATE salon_jobs_job SET run_at = clock_timestamp() - %s * interval '1 s'", seconds)


def test_a_job_that_waited_too_long_expires_uncharged_and_is_not_started(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, limit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    limit(wait_timeout=timedelta(seconds=60))
    runs: list[int] = []
    hooks.store = lambda number, **_: runs.append(number)
    punctual = tasks.in_store.enqueue(store_id=stores[0], number=1)
    due_since(50)
    late = tasks.in_store.enqueue(store_id=stores[0], number=2)
    change("UPDATE salon_jobs_job SET run_at = run_at - interval '75 s' WHERE id = %s", late.id)
    [expired, succeeded] = run_due(process_id)
    assert isinstance(expired, NotStarted)
    message = str(expired.error)
    assert re.fullmatch(r"waited 7[5-9](\.\d)? s, longer than 60 s", message)
    assert succeeded == Succeeded(finished=True)
    assert (runs, job_row(punctual.id)) == ([1], None)
    assert seen("SELECT state, reason, attempts, finished_at IS NULL FROM salon_jobs_job") == [
        ("cancelled", f"expired: {message}", 0, False)
    ]
    assert seen("SELECT attempt, error_class, code, job_id, store_id, message FROM salon_jobs_job_error") == [
        (*EXPIRED, late.id, stores[0], message)
    ]
    [record] = event_fields(caplog, "job_expired")
    assert (record["job_id"], record["code"], record["error_class"]) == (late.id, EXPIRED[2], EXPIRED[1])
    assert 75 <= record["waited_s"] < 80


def test_an_expired_run_is_reported_to_tracers_and_metrics(
    stores: list[UUID], process_id: int, limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(wait_timeout=timedelta(seconds=60))
    tracer, counted = RecordingTracer({}), TaskStatistics()
    monkeypatch.setattr(tracing, "_tracer", tracer)
    monkeypatch.setattr(ends, "ended_runs", counted)
    handle = tasks.in_store.enqueue(store_id=stores[0])
    due_since(75)
    run_on_threads(process_id)
    [run] = [each for each in tracer.calls if isinstance(each, tracing.Run)]
    assert (run.job_id, run.ended, type(run.error)) == (handle.id, "job_expired", Expired)
    totals = RunTotals()
    totals.add(counted.take_report())
    assert of(shown(totals.samples()), "finished_total", task="test-store", outcome="expired") == 1
    counted.flush(using="default")
    assert seen("SELECT cancelled FROM salon_jobs_task_minute") == [(1,)]


def test_the_last_attempt_fails_the_job_and_admin_and_command_line_show_the_error_with_its_code(
    run_on_thread: RunOnThread, limit: Any
) -> None:
    limit(timeout=SHORT)
    job_id = run_on_thread(spin, tasks.system.using(max_attempts=1))
    assert seen("SELECT state, reason FROM salon_jobs_job") == [("failed", "JOB.TIMED_OUT")]
    plain, as_json = StringIO(), StringIO()
    call_command("salon_jobs", "show", str(job_id), stdout=plain)
    call_command("salon_jobs", "show", str(job_id), "--json", stdout=as_json)
    in_admin = job_page.format_attempts(Job.objects.get(pk=job_id))
    for text in (plain.getvalue(), as_json.getvalue(), in_admin):
        assert "JOB.TIMED_OUT" in text
        assert "timed out after" in text


def test_the_wait_in_the_local_queue_counts(database: None, hooks: tasks.Hooks, process_id: int, limit: Any) -> None:
    limit(wait_timeout=timedelta(seconds=60))
    runs: list[str] = []

    def handler(note: str) -> None:
        runs.append(note)
        limit(wait_timeout=timedelta(seconds=0.3))
        time.sleep(0.4)

    hooks.system = handler
    for note in ("first", "behind it"):
        tasks.system.enqueue(note=note)
    with running_on_a_thread(process_id, claim(process_id)):
        assert runs == ["first"]
    [(state, waited_s)] = seen("SELECT state, substring(reason FROM '^expired: waited ([0-9.]+)') FROM salon_jobs_job")
    assert state == "cancelled"
    assert float(waited_s) >= 0.4


def test_a_run_that_was_interrupted_has_not_waited(
    run_on_thread: RunOnThread, hooks: tasks.Hooks, process_id: int, limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(wait_timeout=timedelta(seconds=60))
    runners: list[Runner] = []
    execute_run = Runner._execute

    def remember(runner: Runner, running: RunningJob) -> Outcome:
        runners.append(runner)
        return execute_run(runner, running)

    def interrupt(**_: object) -> None:
        hooks.store = lambda **_: None
        # It has run for longer than a job may wait.
        change("UPDATE salon_jobs_job SET run_at = run_at - interval '75 s'")
        threading.Thread(target=runners[-1].interrupt, args=(current_job(), Interrupted)).start()
        spin()

    monkeypatch.setattr(Runner, "_execute", remember)
    run_on_thread(interrupt, tasks.in_store)
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("queued", 0)]
    run_on_threads(process_id)
    assert seen("SELECT state, reason FROM salon_jobs_job") == []


@pytest.mark.parametrize("started", [True, False])
def test_a_run_whose_process_died_has_not_waited(
    stores: list[UUID], process_id: int, limit: Any, started: bool
) -> None:
    limit(wait_timeout=timedelta(seconds=60))
    handle = tasks.in_store.enqueue(store_id=stores[0])
    claim(process_id)
    due_since(75)
    leases_of(process_id).rescue("went silent", charged=[handle.id] if started else [])
    run_on_threads(process_id)
    assert seen("SELECT state FROM salon_jobs_job") == ([] if started else [("cancelled",)])


def test_waiting_shortens_the_run_that_asks_for_it(
    database: None, hooks: tasks.Hooks, process_id: int, limit: Any
) -> None:
    limit(timeout=timedelta(seconds=25), wait_timeout=timedelta(seconds=30), waiting_shortens_timeout=True)
    left: list[float] = []

    def handler(**_: object) -> None:
        deadline = current_job().deadline
        assert deadline is not None
        left.append((deadline - datetime.now(UTC)).total_seconds())

    hooks.system = handler
    tasks.system.enqueue()
    due_since(20)
    run_on_threads(process_id)
    assert 5 < left[0] < 10.1


def test_the_next_job_does_not_meet_what_an_interrupt_left_behind(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, limit: Any, busy: Busy
) -> None:
    limit(timeout=SHORT)
    left = ContextVar("left", default=False)
    met: list[Any] = []

    def handler(number: int, **_: object) -> None:
        met.append((left.get(), len(connection.execute_wrappers), connection.connection.info.backend_pid))
        if number == 1:
            left.set(True)
            connection.execute_wrappers.append(lambda execute, *arguments: execute(*arguments))
            spin(busy)

    hooks.store = handler
    for number in (1, 2):
        tasks.in_store.enqueue(store_id=stores[0], number=number)
    with running_on_a_thread(process_id, claim(process_id)):
        (_, wrappers, interrupted_by), (seen_left, seen_wrappers, other) = met
    assert (seen_left, seen_wrappers) == (False, wrappers)
    assert interrupted_by != other


def test_an_error_of_our_own_frees_the_thread_and_forgets_the_deadline(
    stores: list[UUID],
    hooks: tasks.Hooks,
    process_id: int,
    limit: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit(timeout=timedelta(seconds=60))
    runs: list[int] = []
    hooks.store = lambda number, **_: runs.append(number)
    broken = tasks.in_store.enqueue(store_id=stores[0], number=1)
    tasks.in_store.enqueue(store_id=stores[0], number=2)

    def execute_or_break(running: Any) -> Any:
        if running.id == broken.id:
            raise ValueError("a defect of ours")
        return executor.execute(running)

    monkeypatch.setattr(runner_module, "execute", execute_or_break)
    with running_on_a_thread(process_id, claim(process_id)) as thread:
        assert thread._jobs.running_count() == 0
        assert thread._deadlines._watched == {}
    assert runs == [2]
    assert seen("SELECT id, state, attempts FROM salon_jobs_job") == [(broken.id, "running", 0)], "to be given back"
    assert f"the end of job {broken.id} could not be written" in caplog.text
