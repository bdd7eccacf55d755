"""How a run can end, and what its row, its error rows and the log say afterwards."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from salon_jobs import Discard, Retry, Snooze, current_job, task
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import NoCurrentJob, SalonJobsError, TimedOut
from salon_jobs.core.outcomes import Cancelled, Errored, Left, NotStarted, Snoozed, Succeeded
from salon_jobs.db.read_only import ServerReadOnly
from salon_jobs.jobs import registry
from salon_jobs.jobs.run import JobRun
from salon_jobs.worker.executor import asks_server
from tests import tasks
from tests.support import change, new_store_id, row_of, running_job, seen
from tests.tasks import raises
from tests.worker.work import Work, error_classes, errors, make_due, rows

TOOK = "SELECT state, finished_at - started_at, started_at - claimed_at FROM salon_jobs_job"
MOMENT = timedelta(minutes=10)


class Parcel(msgspec.Struct, forbid_unknown_fields=True):
    """Argument that refuses what it does not know."""

    width: int


@contextmanager
def declared_for_parcels() -> Generator[Any]:
    @task(name="test-parcel")
    def send(parcel: Parcel) -> None:
        """Do nothing."""

    try:
        yield send
    finally:
        registry.unregister("test-parcel")


def values(job_id: int, *columns: str) -> tuple[Any, ...]:
    row = row_of(job_id)
    return tuple(row[column] for column in columns)


def test_interrupted_run_asks_no_server(work: Work) -> None:
    run = running_job(work.claim_one(None, tasks.system), work.process_id)
    refused = ServerReadOnly()
    assert asks_server(run, refused)
    run.interrupted_by = TimedOut
    assert not asks_server(run, refused)


def run_long_after_claim(work: Work) -> None:
    """Claim what is due, an hour ago by its rows, and run it now."""
    jobs = work.claim()
    change("UPDATE salon_jobs_job SET started_at = now() - interval '1 hour' WHERE state = 'running'")
    with work.on_thread() as runner:
        runner.end_all(jobs)


def test_start_of_kept_success(work: Work, settings: Any) -> None:
    """An ended job says when it was claimed, and when its run began, however long it waited in between."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60}
    for declared in (tasks.system, tasks.in_store, tasks.outside, tasks.kept_result, tasks.kept_result_in_store):
        work.add(None, declared)
    run_long_after_claim(work)
    ran = seen(TOOK)
    assert [state for state, _, _ in ran] == ["succeeded"] * 5
    assert all(timedelta(0) <= took < MOMENT < waited for _, took, waited in ran)
    kept = seen("SELECT finished_at - started_at FROM salon_jobs_job_result")
    assert [timedelta(0) <= took < MOMENT for (took,) in kept] == [True, True]


@pytest.mark.parametrize(("error", "state"), [(ValueError("no"), "failed"), (Discard("not needed"), "cancelled")])
def test_start_of_unsuccessful_run(work: Work, error: Exception, state: str) -> None:
    work.add(raises(error), tasks.in_store.using(max_attempts=1))
    run_long_after_claim(work)
    [(found, took, waited)] = seen(TOOK)
    assert found == state
    assert timedelta(0) <= took < MOMENT < waited
    for (took,) in seen("SELECT occurred_at - started_at FROM salon_jobs_job_error"):
        assert timedelta(0) <= took < MOMENT


def test_released_run_forgets_claim(work: Work) -> None:
    work.add(raises(Snooze(timedelta(minutes=1))), tasks.system)
    change("UPDATE salon_jobs_job SET claimed_at = now() - interval '2 h'")
    run_long_after_claim(work)
    assert seen("SELECT state, claimed_at FROM salon_jobs_job") == [("queued", None)]


def test_current_job(work: Work) -> None:
    got: list[Any] = []

    def body(**_: object) -> None:
        job = current_job()
        got.append((job.id, job.task, job.attempt, job.max_attempts, job.store_id, job.tick))

    job_id = work.add(body, store=2)
    work.run_due()
    assert got == [(job_id, "test-store", 1, 3, work.stores[2], None)]
    with pytest.raises(NoCurrentJob):
        current_job()


def test_plain_run_has_no_extensions(work: Work) -> None:
    """It looks them up in the table of its class, which is empty."""
    runs: list[JobRun] = []
    work.add(lambda **_: runs.append(current_job().run), tasks.system)
    work.add(lambda **_: runs.append(current_job().run), store=1)
    work.run_due()
    assert len(runs) == 2
    assert all("extensions" not in vars(run) and not run.extensions for run in runs)


@pytest.mark.parametrize(
    ("error", "options", "state", "reason"),
    [
        (OSError("gone"), {}, "queued", ""),
        (ConnectionResetError("gone"), {}, "queued", ""),  # a subclass counts
        (OSError("gone"), {"max_attempts": 1}, "failed", "attempts_exhausted"),
        (RuntimeError("gone"), {}, "failed", "not_retried"),
        (KeyError("gone"), {}, "cancelled", "discarded: KeyError: 'gone'"),
    ],
)
def test_error_rules_of_task(work: Work, error: Exception, options: Any, state: str, reason: str) -> None:
    def body(**_: object) -> None:
        tasks.system.enqueue()
        raise error

    job_id = work.add(body, tasks.with_error_rules.using(**options))
    work.run_due()
    assert values(job_id, "state", "reason", "attempts", "leased_by") == (state, reason, 1, None)
    assert len(rows()) == 1, "what it enqueued is rolled back"
    assert len(errors()) == (state != "cancelled")


@pytest.mark.parametrize(("error", "state"), [(KeyError("gone"), "failed"), (OSError("busy"), "queued")])
def test_error_that_fails_at_once(work: Work, error: Exception, state: str) -> None:
    """It is an error like any other, and those that are not named are retried."""
    job_id = work.add(raises(error), tasks.with_final_errors)
    work.run_due()
    assert values(job_id, "state", "attempts") == (state, 1)
    assert error_classes() == [type(error).__name__]
    events = ["job_failed"] if state == "failed" else ["job_retried"]
    assert [event for event in ("job_failed", "job_retried", "job_cancelled") if work.fields(event)] == events


def test_retry_waits_as_asked(work: Work) -> None:
    """It counts its attempt, whatever the task retries, and records what caused it."""

    def body(**_: object) -> None:
        try:
            raise KeyError("429")
        except KeyError:
            raise Retry(after=timedelta(days=3))  # noqa: B904

    job_id = work.add(body, tasks.with_error_rules.using(max_attempts=2))
    work.run_due()
    assert values(job_id, "state", "reason", "attempts") == ("queued", "", 1)
    [retried] = work.fields("job_retried")
    assert (retried["delay_s"], retried["error_class"]) == (3 * 86_400, "builtins.KeyError")
    assert seen("SELECT run_at > now() + interval '71 h' FROM salon_jobs_job") == [(True,)]
    make_due()
    work.run_due()
    assert values(job_id, "state", "reason", "attempts") == ("failed", "attempts_exhausted", 2)
    assert error_classes() == ["KeyError"] * 2


def test_attempts_end_in_failed(work: Work) -> None:
    """Each has an error row."""
    job_id = work.add(raises(RuntimeError("boom")))
    for wait_s in (2, 4):
        work.run_due()
        later = "SELECT extract(epoch FROM run_at - max(occurred_at))::float8 FROM salon_jobs_job, salon_jobs_job_error"
        [(waits_s,)] = seen(f"{later} GROUP BY run_at")
        assert 0.9 * wait_s - 0.1 <= waits_s <= 1.1 * wait_s + 0.1
        make_due()
    work.run_due()
    make_due()
    assert work.run_due() == []
    assert values(job_id, "state", "attempts", "reason", "leased_by") == ("failed", 3, "attempts_exhausted", None)
    found = seen("SELECT attempt, store_id, error_class, message, traceback FROM salon_jobs_job_error ORDER BY id")
    said = (work.stores[0], "builtins.RuntimeError", "boom")
    assert [error[:4] for error in found] == [(attempt, *said) for attempt in (1, 2, 3)]
    assert all("in hook\n" in error[4] for error in found)
    assert work.events == ["job_retried", "job_retried", "job_failed"]
    logged = [record for record in work.log.records if vars(record).get("event") in ("job_retried", "job_failed")]
    assert [vars(record)["event_fields"]["error"] for record in logged] == ["boom"] * 3
    assert [record.exc_info is not None for record in logged] == [True, False, True], "not what only repeats the first"


def test_logged_error_is_redacted(work: Work) -> None:
    error = RuntimeError('{"card_number": "4242", "amount": 7}')
    work.run(raises(error), tasks.system.using(max_attempts=2))
    [fields] = work.fields("job_retried")
    assert fields["error"] == '{"card_number": "***", "amount": 7}'


class Unshowable(Exception):
    """Is an error whose message cannot be computed."""

    def __str__(self) -> str:
        raise ValueError


class Exits(Exception):
    """Is an error that asks for the end of the process when it is shown, and whose notes are none."""

    def __str__(self) -> str:
        raise SystemExit(1)

    def __getattribute__(self, name: str) -> Any:
        if name == "__notes__":
            raise SystemExit(1)
        return super().__getattribute__(name)


class Miscoded(SalonJobsError):
    """Is an error whose code is no text and whose class has a name that no column takes."""

    code = object()  # type: ignore[assignment]


Miscoded.__module__ = "tests\0.\udce9"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(3), "3"),
        (KeyboardInterrupt(), ""),
        (GeneratorExit(), ""),
        (RuntimeError("a\0b"), "a\\x00b"),
        (RuntimeError("caf\udce9"), "caf\\udce9"),
        (Unshowable(), "(cannot be shown: ValueError)"),
        (Exits(), "(cannot be shown: SystemExit)"),
        (Miscoded("x"), "x"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_any_exception_is_error_of_job(work: Work, error: BaseException, message: str) -> None:
    work.run(raises(error), tasks.system)
    assert rows() == [("queued", 1, None)]
    assert seen("SELECT message FROM salon_jobs_job_error") == [(message,)]


def test_snooze_counts_no_attempt(work: Work) -> None:
    work.add(raises(Snooze(timedelta(minutes=5))))
    for _ in range(4):
        assert work.again() == Snoozed(timedelta(minutes=5))
    assert (rows(), errors()) == ([("queued", 0, None)], [])
    assert seen("SELECT run_at - now() > interval '3 min' FROM salon_jobs_job") == [(True,)]


def test_discard_cancels_with_reason(work: Work) -> None:
    job_id = work.add(raises(Discard("the invitation was withdrawn\0")))
    work.run_due()
    reason = "discarded: the invitation was withdrawn\\x00"
    assert values(job_id, "state", "attempts", "reason") == ("cancelled", 1, reason)


def test_invalid_payload_fails_at_once(work: Work) -> None:
    job_id = work.add(None, tasks.system)
    change("""UPDATE salon_jobs_job SET payload = '{"note": 1}'""")
    assert isinstance(work.run_due()[0], Errored)
    assert values(job_id, "state", "attempts", "reason") == ("failed", 1, "JOB.PAYLOAD_INVALID")
    assert [code for _, _, code in errors()] == ["JOB.PAYLOAD_INVALID"]


@pytest.mark.parametrize("declared", [tasks.system, tasks.in_store, tasks.once])
@pytest.mark.parametrize("payload", ['{"size": 1}', '{"note": 1, "size": 1}', '{"size": 1, "note": 1}'])
def test_unknown_argument_leaves_job(work: Work, declared: Any, payload: str) -> None:
    """A release that knows the argument runs the job: its only attempt, if it has but one, is not counted."""
    job_id = work.add(None, declared if declared.at_most_once else declared.using(max_attempts=1))
    wanted = row_of(job_id)["payload"]
    change("UPDATE salon_jobs_job SET payload = %s", payload)
    for _ in range(3):
        make_due()
        assert isinstance(work.run_due()[0], Left)
        assert values(job_id, "state", "attempts", "reason", "begun_once_at") == ("queued", 0, "", None)
    assert (errors(), work.claim()) == ([], [])
    assert seen("SELECT run_at BETWEEN now() AND now() + interval '1 min' FROM salon_jobs_job") == [(True,)]
    told = work.fields("job_released")[0]
    assert {"reason": "payload unknown", "code": "JOB.PAYLOAD_UNKNOWN", "attempt": 1}.items() <= told.items()
    assert re.fullmatch(f"task '{declared.name}': no argument ('note', )?'size' in this release", told["error"])
    change("UPDATE salon_jobs_job SET payload = %s", wanted)
    assert isinstance(work.again(), Succeeded)


def test_unknown_field_in_argument_leaves_job(work: Work) -> None:
    with declared_for_parcels() as parcels:
        job_id = work.add(None, parcels, parcel=Parcel(width=1))
        change("""UPDATE salon_jobs_job SET payload = '{"parcel": {"width": 1, "size": 2}}'""")
        assert isinstance(work.run_due()[0], Left)
        change("""UPDATE salon_jobs_job SET payload = '{"parcel": {"width": "x"}}'""")
        assert isinstance(work.again(), Errored)
    assert values(job_id, "state", "reason") == ("failed", "JOB.PAYLOAD_INVALID")


@pytest.mark.parametrize(("age", "least_s", "most_s"), [("0 s", 0, 5), ("20 s", 15, 30), ("7 d", 55, 61)])
def test_left_job_waits_as_long_again(work: Work, age: str, least_s: int, most_s: int) -> None:
    """A backlog that no worker knows costs little, and a new job soon meets one that knows it."""
    work.add(None, tasks.system)
    change("""UPDATE salon_jobs_job SET payload = '{"size": 1}', created_at = now() - %s::interval""", age)
    work.run_due()
    [(wait,)] = seen("SELECT extract(epoch FROM run_at - now())::float8 FROM salon_jobs_job")
    assert least_s - 5 <= wait <= most_s
    assert least_s <= work.fields("job_released")[0]["delay_s"] <= most_s


@pytest.mark.parametrize("declared", [tasks.in_store, tasks.outside])
def test_job_of_deleted_store_is_discarded(work: Work, declared: Any) -> None:
    work.stores[0] = new_store_id()
    job_id = work.add(raises(AssertionError("it must not run")), declared)
    assert work.run_due() == [Cancelled("discarded", "the store no longer exists")]
    assert values(job_id, "state", "reason") == ("cancelled", "discarded: the store no longer exists")


def test_expired_job_does_not_run(work: Work) -> None:
    job_id = work.add(raises(AssertionError("it must not run")))
    change("UPDATE salon_jobs_job SET expires_at = now() - interval '1 s'")
    assert isinstance(work.run_due()[0], NotStarted)
    reason = "expired: claimed after expires_at"
    assert values(job_id, "state", "reason", "attempts") == ("cancelled", reason, 0)
    assert errors() == [(1, "salon_jobs.core.errors.Expired", "JOB.EXPIRED")]


def test_runner_survives_unwritable_end(work: Work) -> None:
    beyond = Snooze(timedelta(0))
    beyond.delay = timedelta.max
    bodies = {"1 exit": raises(SystemExit(1)), "2 beyond the calendar": raises(beyond), "3 fine": lambda: None}
    work.hooks.system = lambda note: bodies[note]()
    for note in bodies:
        work.add(None, tasks.system, note=note)
    with work.on_thread() as runner:
        assert not runner.ended
    left = seen("SELECT payload->>'note', state, attempts FROM salon_jobs_job ORDER BY 1")
    assert left == [(note, "queued", 1) for note in list(bodies)[:2]]
    assert error_classes() == ["SystemExit", "DataError"]


class Uncomputable(Backoff):
    """Is a backoff of somebody's own, with a mistake in it."""

    def delay(self, attempt: int, rng: object = None) -> timedelta:
        raise ZeroDivisionError


def test_error_that_cannot_be_settled(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still costs an attempt."""
    monkeypatch.setattr(tasks.system, "_backoff", Uncomputable())
    work.run_on_thread(raises(RuntimeError("the till is closed")), tasks.system)
    assert rows() == [("queued", 1, None)]
    assert error_classes() == ["ZeroDivisionError"]
