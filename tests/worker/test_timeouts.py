"""A run, or a wait, that takes too long ends alone, and its row and the log tell it."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction

from salon_jobs import Retry, Snooze, current_job
from salon_jobs.admin.job import format_attempts
from salon_jobs.core import tracing
from salon_jobs.core.errors import Expired, Interrupted, OptionInvalid, TimedOut
from salon_jobs.core.outcomes import NotStarted, Succeeded
from salon_jobs.dashboard.jobs import job_page
from salon_jobs.jobs.statistics import TaskStatistics
from salon_jobs.models import Job
from salon_jobs.worker import deadlines, ends, executor
from salon_jobs.worker import runner as runner_module
from salon_jobs.worker.child_process import ChildSupervisor, Life
from salon_jobs.worker.in_flight import NEVER, InFlightRun
from salon_jobs.worker.supervisor import RunTotals
from tests import tasks
from tests.inside import trace_with
from tests.metrics import of, shown
from tests.support import another_process, change, claim, job_row, run, seen
from tests.tasks import raises
from tests.tracers import RecordingTracer
from tests.waiting import LIMIT_S, eventually
from tests.worker.conftest import Busy
from tests.worker.effects import spin, write, written
from tests.worker.work import SLEEPING, Work, error_classes, errors, rows

LimitRuns = Callable[..., None]
SHORT = timedelta(seconds=0.02)
MINUTE = timedelta(minutes=1)
TIMED_OUT = (1, "salon_jobs.core.errors.TimedOut", "JOB.TIMED_OUT")


def sleep() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(600)")


def wait_until_it_sleeps() -> None:
    eventually(lambda: seen(SLEEPING), [(1,)])
    connections.close_all()


def sleep_in_a_query(busy: Busy) -> None:
    def interrupt_later() -> None:
        wait_until_it_sleeps()
        busy.set()

    threading.Thread(target=interrupt_later, daemon=True).start()
    sleep()


@pytest.mark.parametrize("body", [spin, sleep_in_a_query])
@pytest.mark.parametrize("declared", [tasks.in_store, tasks.outside])
def test_timeout_rolls_back_and_retries(
    work: Work, limit_runs: LimitRuns, busy: Busy, body: Callable[[Busy], None], declared: Any
) -> None:
    limit_runs(timeout=SHORT)

    def handler(**_: object) -> None:
        with transaction.atomic():
            write()
            body(busy)

    work.run_on_thread(handler, declared)
    assert (rows(), errors(), written()) == ([("queued", 1, None)], [TIMED_OUT], [])
    assert "in handler\n" in seen("SELECT traceback FROM salon_jobs_job_error")[0][0]
    assert work.events == ["job_timed_out", "job_retried"]
    [fields] = work.fields("job_timed_out")
    assert {"timeout_s": 0.02, "store_id": work.stores[0], "code": "JOB.TIMED_OUT"}.items() <= fields.items()
    assert work.fields("job_retried")[0]["code"] == "JOB.TIMED_OUT"
    assert seen(SLEEPING) == [(0,)]


def test_interrupt_cancels_query_just_sent(work: Work, monkeypatch: pytest.MonkeyPatch, limit_runs: LimitRuns) -> None:
    limit_runs(timeout=SHORT)
    striking = threading.Event()
    raise_in = runner_module._raise_in

    def late(thread: threading.Thread, kind: type[Interrupted] | None) -> None:
        if kind is not None:
            striking.set()
            wait_until_it_sleeps()
        raise_in(thread, kind)

    def handler(**_: object) -> None:
        assert striking.wait(LIMIT_S)
        sleep()

    monkeypatch.setattr(runner_module, "_raise_in", late)
    work.run_on_thread(handler, tasks.outside)
    assert errors() == [TIMED_OUT]


@pytest.mark.parametrize(
    ("swallowed", "declared"),
    [(BaseException, tasks.in_store), (TimedOut, tasks.outside), (TimedOut, tasks.system), (Exception, tasks.system)],
)
def test_swallowed_timeout_is_no_success(
    work: Work, limit_runs: LimitRuns, busy: Busy, swallowed: type[BaseException], declared: Any
) -> None:
    """An ``except Exception`` lets it pass."""
    limit_runs(timeout=SHORT)
    went_on: list[bool] = []

    def handler(**_: object) -> None:
        with suppress(swallowed):
            spin(busy)
        went_on.append(True)

    work.run_on_thread(handler, declared)
    assert went_on == [True] * (swallowed is not Exception)
    assert (rows(), errors()) == ([("queued", 1, None)], [TIMED_OUT])
    [(message,)] = seen("SELECT message FROM salon_jobs_job_error")
    says_so = r"timed out after 0\.\d+ s: the handler went on, which is no success: .* Discard, Snooze or Retry; .*"
    assert re.fullmatch(says_so if went_on else r"timed out after 0\.\d+ s", message)


def finish() -> None:
    with transaction.atomic():
        write()
        current_job().finish()


snooze, retry = raises(Snooze(timedelta(minutes=5))), raises(Retry(after=timedelta(days=3)))


@pytest.mark.parametrize(
    ("before", "after", "left", "effects"),
    [
        (finish, None, [], ["effect"]),
        (None, finish, [("queued", 1, None)], []),
        (None, snooze, [("queued", 0, None)], []),
        (None, retry, [("queued", 1, None)], []),
    ],
    ids=["finished and committed before", "finishing after raises it again", "another end after", "a wait of its own"],
)
def test_other_ends_than_timeout(
    work: Work, limit_runs: LimitRuns, busy: Busy, before: Any, after: Any, left: list[Any], effects: list[str]
) -> None:
    limit_runs(timeout=SHORT)

    def handler(**_: object) -> None:
        if before:
            before()
        try:
            spin(busy)
        except TimedOut as error:
            if after:
                after()
            raise error from None

    work.run_on_thread(handler, tasks.outside)
    assert (rows(), written()) == (left, effects)
    assert errors() == [TIMED_OUT] * (after in (finish, retry))
    if after is retry:
        waits_for_days = "SELECT run_at > now() + interval '2 days' FROM salon_jobs_job"
        assert seen(waits_for_days) == [(True,)]


def test_extension_moves_both_ends(work: Work, limit_runs: LimitRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline of the run moves, and so does the instant at which its process is killed, which the table shows."""
    limit_runs(timeout=MINUTE)
    shown: list[Any] = []

    def handler(note: str) -> None:
        job = current_job()

        def look() -> tuple[float, float]:
            [run] = runner.table.shown()
            assert (run.job_id, run.lease) == (job.id, job.run.job.lease)
            assert job.deadline is not None
            left_s, run_s = (job.deadline - datetime.now(UTC)).total_seconds(), time.monotonic() - job.run.started
            return round(run.kill_at - job.run.started, 3), round(left_s + run_s)

        shown.append(look())
        job.extend(timedelta(minutes=10))
        shown.append(look())
        monkeypatch.setattr(deadlines, "time", SimpleNamespace(monotonic=lambda: job.run.started + 61))
        runner.deadlines.poll()
        assert job.run.interrupted_by is None

    with work.on_thread() as runner:
        work.add(handler, tasks.system)
        runner.end_all(work.claim())
        assert runner.table.shown() == []
    assert shown == [(70.0, 60), (670.0, 660)]
    assert (rows(), errors()) == ([], [])


def test_extension_without_timeout(work: Work) -> None:
    """There is no deadline, and nothing to extend."""
    got: list[Any] = []

    def handler(**_: object) -> None:
        current_job().extend(MINUTE)
        got.append(current_job().deadline)
        for wrong in (timedelta(seconds=-1), timedelta(days=36_501)):
            with pytest.raises(OptionInvalid, match="by must be a timedelta from zero to 36,500 days"):
                current_job().extend(wrong)

    work.run_on_thread(handler, tasks.system)
    assert (got, rows()) == ([None], [])


def test_interrupt_after_end_of_run(work: Work, monkeypatch: pytest.MonkeyPatch, limit_runs: LimitRuns) -> None:
    """The interrupt holds the run's lock when the handler ends; it is raised between the run and its settlement."""
    limit_runs(timeout=timedelta(seconds=1))  # the handler must come to its end before it, on a busy machine too
    striking, ended = threading.Event(), threading.Event()
    raise_in = runner_module._raise_in

    def late(thread: threading.Thread, kind: type[Interrupted] | None) -> None:
        if kind is not None:
            striking.set()
            assert ended.wait(LIMIT_S)
            # By then the runner can only wait for the lock.
            number = thread.ident or 0
            eventually(lambda: sys._current_frames()[number].f_code.co_name, "_execute")
        raise_in(thread, kind)

    monkeypatch.setattr(runner_module, "_raise_in", late)

    def wait_for_the_interrupt() -> None:
        assert striking.wait(LIMIT_S)
        ended.set()

    def handler(store_id: UUID, number: int) -> None:
        write(f"effect {number}")
        if number == 0:
            transaction.on_commit(wait_for_the_interrupt)

    for number in range(20):
        work.add(handler, store=number % 3, number=number)
    with work.on_thread() as runner:
        assert not runner.ended
    assert (rows(), errors()) == ([], [])
    assert written() == sorted(f"effect {number}" for number in range(20))


# An interrupt can land in a weak reference's callback, where Python can only print it: it is lost, and hits nobody.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_timeouts_at_end_of_runs(work: Work, limit_runs: LimitRuns) -> None:
    """Every second run ends about when its time is over; the others, of other stores, see nothing of that."""
    limit_runs(timeout=timedelta(seconds=0.02))
    foreign: list[UUID] = []

    def handler(store_id: UUID, number: int, **_: object) -> None:
        job = current_job()
        if job.store_id != store_id:
            foreign.append(store_id)
        write(f"{number}")
        while number % 2 == 0 and time.monotonic() < job.run.started + 0.018:
            pass

    count = 60
    for number in range(count):
        work.add(handler, tasks.keyed if number % 2 else tasks.in_store, store=number % 3, number=number)
    with work.on_thread() as runner:
        assert not runner.ended
    assert foreign == []
    left = {row[0] for row in seen("SELECT (payload->>'number')::int FROM salon_jobs_job")}
    assert all(number % 2 == 0 for number in left)
    assert {int(name) for name in written()} == set(range(count)) - left, "an effect is there when its job is gone"
    assert {row[1:] for row in errors()} <= {TIMED_OUT[1:]}
    assert len(errors()) == len(left)


def due_since(seconds: float, job_id: int | None = None) -> None:
    when = "run_at = clock_timestamp() - %s * interval '1 s'"
    change(f"UPDATE salon_jobs_job SET {when} WHERE %s IN (0, id)", seconds, job_id or 0)


def test_job_expires_after_long_wait(work: Work, limit_runs: LimitRuns) -> None:
    """It counts no attempt, and is not started."""
    limit_runs(wait_timeout=timedelta(minutes=10))
    runs: list[int] = []
    punctual, late = (work.add(lambda number, **_: runs.append(number), number=number) for number in (1, 2))
    due_since(50, punctual)
    due_since(905, late)
    [expired, succeeded] = work.run_due()
    assert isinstance(expired, NotStarted)
    message = str(expired.error)
    assert re.fullmatch(r"waited 9\d\d s, longer than 600 s", message)
    assert succeeded == Succeeded(finished=True)
    assert (runs, job_row(punctual)) == ([1], None)
    assert seen("SELECT state, reason, attempts, finished_at IS NULL FROM salon_jobs_job") == [
        ("cancelled", f"expired: {message}", 0, False)
    ]
    code, name = "JOB.EXPIRED", "salon_jobs.core.errors.Expired"
    assert seen("SELECT attempt, error_class, code, job_id, store_id, message FROM salon_jobs_job_error") == [
        (1, name, code, late, work.stores[0], message)
    ]
    [record] = work.fields("job_expired")
    assert (record["job_id"], record["code"], record["error_class"]) == (late, code, name)
    assert 905 <= record["waited_s"] < 1000


def test_expired_run_in_traces_and_metrics(work: Work, limit_runs: LimitRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_runs(wait_timeout=MINUTE)
    tracer, counted = RecordingTracer({}), TaskStatistics()
    trace_with(monkeypatch, tracer)
    monkeypatch.setattr(ends, "ended_runs", counted)
    job_id = work.add()
    due_since(75)
    work.run_on_thread()
    [run] = [each for each in tracer.calls if isinstance(each, tracing.Run)]
    assert (run.job_id, run.ended, type(run.error)) == (job_id, "job_expired", Expired)
    totals = RunTotals()
    totals.add(counted.take_report())
    assert of(shown(totals.samples()), "finished_total", task="test-store", outcome="expired") == 1
    counted.flush(using="default")
    assert seen("SELECT cancelled FROM salon_jobs_task_minute") == [(1,)]


def test_timeout_of_last_attempt(work: Work, limit_runs: LimitRuns) -> None:
    """The job has failed; admin and command line show the error with its code."""
    limit_runs(timeout=timedelta(seconds=0.2))
    job_id = work.run_on_thread(spin, tasks.system.using(max_attempts=1))
    assert seen("SELECT state, reason FROM salon_jobs_job") == [("failed", "JOB.TIMED_OUT")]
    plain, as_json = StringIO(), StringIO()
    call_command("salon_jobs", "show", str(job_id), stdout=plain)
    call_command("salon_jobs", "show", str(job_id), "--json", stdout=as_json)
    page = job_page(Job.objects.get(pk=job_id), using="default")
    in_admin = format_attempts(page, page.errors)
    for text in (plain.getvalue(), as_json.getvalue(), in_admin):
        assert "JOB.TIMED_OUT" in text
        assert "timed out after" in text


def test_wait_in_local_queue_counts(work: Work, limit_runs: LimitRuns) -> None:
    limit_runs(wait_timeout=timedelta(hours=1))
    runs: list[str] = []

    def handler(note: str) -> None:
        runs.append(note)
        until = time.monotonic() + 0.4
        eventually(lambda: time.monotonic() > until)
        limit_runs(wait_timeout=timedelta(seconds=0.3))

    for note in ("first", "behind it"):
        work.add(handler, tasks.system, note=note)
    work.run_on_thread()
    assert runs == ["first"]
    [(state, waited_s)] = seen("SELECT state, substring(reason FROM '^expired: waited ([0-9.]+)') FROM salon_jobs_job")
    assert state == "cancelled"
    assert float(waited_s) >= 0.4


def test_interrupted_run_has_not_waited(work: Work, limit_runs: LimitRuns) -> None:
    limit_runs(wait_timeout=MINUTE)

    def interrupt(**_: object) -> None:
        work.hooks.reset()
        # It has run for longer than a job may wait.
        change("UPDATE salon_jobs_job SET run_at = run_at - interval '75 s'")
        threading.Thread(target=runner.interrupt, args=(current_job().run, Interrupted)).start()
        spin()

    with work.on_thread() as runner:
        work.add(interrupt)
        runner.end_all(work.claim())
    assert rows() == [("queued", 0, None)]
    work.run_on_thread()
    assert rows() == []


@pytest.mark.parametrize("started", [True, False])
def test_rescued_run_has_not_waited(work: Work, limit_runs: LimitRuns, started: bool) -> None:
    limit_runs(wait_timeout=MINUTE)
    job = work.claim_one()
    due_since(75)
    work.leases.rescue("went silent", charged=[job.id] if started else [])
    work.run_on_thread()
    assert seen("SELECT state FROM salon_jobs_job") == ([] if started else [("cancelled",)])


@pytest.mark.parametrize("declared", [tasks.in_store, tasks.in_chunks])
def test_run_in_killed_child_has_not_waited(work: Work, limit_runs: LimitRuns, declared: Any) -> None:
    """The child was killed at the end of a shutdown, or for another job: nothing is charged.

    Which jobs of a chunk had begun is unknown; of others, one that waited in the child has waited.
    """
    limit_runs(wait_timeout=MINUTE)
    for number in range(2):
        work.add(None, declared, number=number)
    began, waiting = work.claim()
    due_since(75)
    supervisor = ChildSupervisor(0, Mock(), Mock(using="default"), Mock())
    supervisor._life = Life.BLAMELESS
    child = Mock(process_id=work.process_id, report=None)
    child.runs.return_value = [InFlightRun(0, began.id, began.lease, 0.0, NEVER)]
    supervisor._sign_off(child, -9, in_order=False)
    again = another_process()
    outcomes = [type(run(job, again)) for job in claim(again)]
    assert outcomes == ([NotStarted, Succeeded] if declared is tasks.in_store else [Succeeded, Succeeded])
    assert job_row(began.id) is None
    assert (job_row(waiting.id) is None) == (declared is tasks.in_chunks)


def test_wait_shortens_timeout(work: Work, limit_runs: LimitRuns) -> None:
    """The task asks for it."""
    seconds = {"timeout": timedelta(seconds=2500), "wait_timeout": timedelta(seconds=3000)}
    limit_runs(**seconds, waiting_shortens_timeout=True)
    left: list[float] = []

    def handler(**_: object) -> None:
        deadline = current_job().deadline
        assert deadline is not None
        left.append((deadline - datetime.now(UTC)).total_seconds())

    work.add(handler, tasks.system)
    due_since(2000)
    work.run_on_thread()
    assert 500 < left[0] < 1001


def test_next_job_after_interrupt(work: Work, limit_runs: LimitRuns, busy: Busy) -> None:
    """It does not meet what the interrupted one left behind, on another connection."""
    limit_runs(timeout=SHORT)
    left = ContextVar("left", default=False)
    met: list[Any] = []

    def handler(number: int, **_: object) -> None:
        met.append((left.get(), len(connection.execute_wrappers), connection.connection.info.backend_pid))
        if number == 1:
            left.set(True)
            connection.execute_wrappers.append(lambda execute, *arguments: execute(*arguments))
            spin(busy)

    for number in (1, 2):
        work.add(handler, number=number)
    work.run_on_thread()
    (_, wrappers, interrupted), (seen_left, seen_wrappers, other) = met
    assert (seen_left, seen_wrappers) == (False, wrappers)
    assert interrupted != other


def test_internal_error_frees_thread(work: Work, limit_runs: LimitRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of our own also forgets the deadline."""
    limit_runs(timeout=MINUTE)
    runs: list[int] = []
    broken, _ = (work.add(lambda number, **_: runs.append(number), number=number) for number in (1, 2))

    def execute_or_break(running: Any) -> Any:
        if running.id == broken:
            raise ValueError("a defect of ours")
        return executor.execute(running)

    monkeypatch.setattr(runner_module, "execute", execute_or_break)
    with work.on_thread() as runner:
        assert runner.jobs.running_count() == 0
        assert runner.deadlines._watched == {}
    assert runs == [2]
    assert seen("SELECT id, state, attempts FROM salon_jobs_job") == [(broken, "running", 0)], "to be given back"
    assert f"the end of job {broken} could not be written" in work.log.text
    assert error_classes() == []
