"""Runs of tasks, and what their results say before, during and after."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections
from django.test import override_settings

from project.settings import SALON_JOBS
from salon_jobs import Discard, get_job, tenant_context
from salon_jobs.backend import SalonJobsBackend
from salon_jobs.backend.framework import TaskResultDoesNotExist, TaskResultStatus
from salon_jobs.backend.tasks import changed
from salon_jobs.control import cancel_jobs, retry_jobs
from salon_jobs.core.errors import ResultInvalid
from salon_jobs.core.outcomes import Errored, Left, NotStarted
from salon_jobs.jobs import registry
from salon_jobs.signals import job_enqueued, job_finished
from salon_jobs.testing import drain_jobs
from tests.backend import calls
from tests.backend.aliases import BACKEND
from tests.backend.django_tasks_api import (
    LOGGER,
    TaskResultMismatch,
    default_task_backend,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.backend.scene import job_of, received
from tests.support import change, connected, seen
from tests.tasks import raises

pytestmark = pytest.mark.usefixtures("database")


def run(task: Any, *args: Any, **kwargs: Any) -> Any:
    """Enqueue a task, run what is due, and return the result as it then is."""
    result = task.enqueue(*args, **kwargs)
    drain_jobs(raise_errors=False)
    return task.get_result(result.id)


def error_paths(result: Any) -> list[str]:
    return [error.exception_class_path for error in result.errors]


def cancel(result: Any) -> None:
    """Cancel the only job by an operator."""
    [(job_id,)] = seen("SELECT id FROM salon_jobs_job")
    assert [done.changed for done in cancel_jobs([job_id], using="operator")] == [True]
    result.refresh()


def test_success_and_its_signals() -> None:
    result = calls.add.enqueue(2, right=3)
    with received(task_started) as started, received(task_finished) as finished:
        drain_jobs()
    assert result.status == TaskResultStatus.READY
    done = calls.add.get_result(result.id)
    assert (done.status, done.return_value, done.is_finished) == (TaskResultStatus.SUCCESSFUL, 5, True)
    assert (done.args, done.kwargs, done.backend) == ([2], {"right": 3}, "default")
    assert (done.errors, done.attempts, done.enqueued_at) == ([], 1, result.enqueued_at)
    assert done.enqueued_at <= done.started_at <= done.finished_at
    assert done.last_attempted_at == done.started_at
    [worker_id] = done.worker_ids
    assert isinstance(worker_id, str)
    assert 0 < len(worker_id) <= 64
    result.refresh()
    assert result == done
    [(started_by, at_start)], [(finished_by, at_end)] = started, finished
    assert started_by is finished_by is SalonJobsBackend
    assert (at_start.id, at_start.attempts) == (done.id, 1)
    assert (at_end.id, at_end.status, at_end.return_value) == (done.id, TaskResultStatus.SUCCESSFUL, 5)
    assert at_end.worker_ids == done.worker_ids
    assert at_end.finished_at is not None


@pytest.mark.parametrize(
    ("task", "arguments", "returned"),
    [
        (calls.give, ["none"], None),
        (calls.give, ["bytes"], "text"),
        (calls.give, ["tuple"], [1, [2, {"a": [3]}]]),
        (calls.double, [21], 42),
        (calls.describe_later, [], 1),
        (calls.Shelf.nested, [5], 5),
        (calls.renamed, [], 4),
    ],
)
def test_return_value_is_normalized(task: Any, arguments: list[Any], returned: Any) -> None:
    done = run(task, *arguments)
    assert (done.status, done.return_value) == (TaskResultStatus.SUCCESSFUL, returned)


@pytest.mark.parametrize(
    ("task", "arguments", "error"),
    [
        (calls.give, ["object"], TypeError),
        (calls.give, ["nan"], ResultInvalid),
        (calls.leave, [], SystemExit),
        (calls.fail.using(keep_result=timedelta(0)), [], ValueError),
        (calls.give_up, [], Discard),
    ],
    ids=["no JSON", "no number in JSON", "SystemExit", "nothing kept", "discarded"],
)
def test_failed_run_has_its_error(task: Any, arguments: list[Any], error: type[Exception]) -> None:
    done = run(task, *arguments)
    assert (done.status, done.attempts, len(done.worker_ids)) == (TaskResultStatus.FAILED, 1, 1)
    assert issubclass(done.errors[0].exception_class, error)


def test_failed_task_has_its_error() -> None:
    done = run(calls.fail, "broken")
    assert (done.status, done.is_finished, done.attempts) == (TaskResultStatus.FAILED, True, 1)
    [error] = done.errors
    assert (error.exception_class, error.exception_class_path) == (ValueError, "builtins.ValueError")
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert "in fail\n" in error.traceback
    assert error.traceback.endswith("ValueError: broken\n")
    assert done.finished_at is not None
    with pytest.raises(ValueError, match="Task failed"):
        _ = done.return_value


def test_discard_after_failure_has_both_errors() -> None:
    done = run(calls.give_up_at_last)
    assert (done.status, done.attempts) == (TaskResultStatus.FAILED, 2)
    assert error_paths(done) == ["builtins.ValueError", "salon_jobs.core.outcomes.Discard"]
    assert len([worker for worker in done.worker_ids if worker]) == 2


def test_cancel_after_failure_has_both_errors() -> None:
    result = run(calls.fail_slowly)
    cancel(result)
    assert error_paths(result) == ["builtins.ValueError", "salon_jobs.core.errors.CancelRequested"]
    assert (result.attempts, len(result.worker_ids)) == (1, 1)


def test_cancel_after_discard_and_retry_has_both_errors() -> None:
    """The discard ended the job before it was retried, not now."""
    result = run(calls.give_up)
    assert retry_jobs(result)[0].changed
    cancel(result)
    assert error_paths(result) == ["salon_jobs.core.outcomes.Discard", "salon_jobs.core.errors.CancelRequested"]


@pytest.mark.parametrize("keep", [timedelta(hours=1), timedelta(0)])
def test_signal_has_result_of_finish(keep: timedelta) -> None:
    with received(task_finished) as got:
        calls.finish_early.using(keep_result=keep).enqueue()
        drain_jobs()
    assert [result.return_value for _, result in got] == [{"sent": 3}]


def test_signal_has_last_result_of_finish() -> None:
    with received(task_finished) as got:
        calls.finish_again.using(keep_result=timedelta(0)).enqueue()
        drain_jobs()
    assert [result.return_value for _, result in got] == [None]


@pytest.mark.parametrize("keep", [timedelta(hours=1), timedelta(0)])
def test_signal_after_rolled_back_finish(keep: timedelta) -> None:
    with received(task_finished) as got:
        calls.finish_in_vain.using(keep_result=keep).enqueue()
        drain_jobs()
    assert [result.return_value for _, result in got] == ["returned"]


def test_cancelled_job_has_failed() -> None:
    result = calls.add.enqueue(1)
    cancel(result)
    assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.FAILED, 0, [])
    assert error_paths(result) == ["salon_jobs.core.errors.CancelRequested"]
    assert result.finished_at is not None


def test_every_attempt_is_in_result() -> None:
    done = run(calls.flaky, 2)
    assert (done.status, done.return_value, done.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 3)
    assert error_paths(done) == ["builtins.ValueError"] * 2
    last_lines = [error.traceback.strip().rpartition("\n")[2] for error in done.errors]
    assert last_lines == ["ValueError: attempt 1", "ValueError: attempt 2"]
    assert len(done.worker_ids) == 3
    assert done.started_at < done.last_attempted_at
    first, second, third = calls.seen
    assert [(each.status, each.attempts, len(each.errors)) for each in calls.seen] == [
        (TaskResultStatus.RUNNING, attempt, attempt - 1) for attempt in (1, 2, 3)
    ]
    assert first.started_at == first.last_attempted_at
    assert third.started_at == second.started_at < third.last_attempted_at
    assert third.worker_ids == done.worker_ids


def test_ready_between_attempts() -> None:
    result = run(calls.fail_slowly)
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.READY, 1, False)
    assert len(result.errors) == 1
    assert (result.finished_at, result.started_at is None) == (None, False)


def test_context_of_task() -> None:
    result = run(calls.describe, "hello")
    assert result.return_value == {"attempt": 1, "id": result.id, "note": "hello"}
    [during] = calls.seen
    assert (during.status, during.task) == (TaskResultStatus.RUNNING, calls.describe)
    assert during.started_at == during.last_attempted_at
    assert during.enqueued_at == result.enqueued_at


@pytest.mark.parametrize(
    "wrong", ["", "1", "00000000-0000-0000-0000-00000000000g", None, 7, b"x", "00000000-0000-4000-8000-000000000000"]
)
def test_malformed_or_missing_id_does_not_exist(wrong: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(wrong)


def test_results_of_other_backends_do_not_exist() -> None:
    result = calls.elsewhere.enqueue()
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result.id)
    assert task_backends["open"].get_result(result.id).id == result.id
    change("UPDATE salon_jobs_job SET payload = %s", '{"args": [1]}')
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["open"].get_result(result.id)


def test_result_of_another_task_is_mismatch() -> None:
    result = calls.add.enqueue(1)
    with pytest.raises(TaskResultMismatch):
        calls.fail.get_result(result.id)
    assert default_task_backend.get_result(result.id).task == calls.add


def test_result_of_removed_task_does_not_exist() -> None:
    with pytest.raises(TaskResultDoesNotExist, match=r"its task 'tests\.backend\.calls\.removed' is no longer a task"):
        default_task_backend.get_result(job_of("tests.backend.calls.removed"))


@pytest.mark.parametrize(
    "path",
    [
        *("os.getcwd", "tests.backend.calls.seen", "tests.backend.calls.Shelf", "nothing", "a b.c"),
        *("unittest.__main__.x", "antigravity.x", "tests.backend.__main__.x"),
    ],
)
def test_paths_import_only_task_modules(path: str) -> None:
    public_id = job_of(path)
    assert drain_jobs() == []
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(public_id)
    assert path not in registry.task_names()
    assert not {"unittest.__main__", "antigravity", "tests.backend.__main__"} & sys.modules.keys()


def test_broken_module_stops_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    job_of("tests.backend.broken.task")
    done = calls.add.enqueue(1)
    with caplog.at_level("ERROR", "salon_jobs"):
        assert len(drain_jobs()) == 1
    assert "the module of task tests.backend.broken.task cannot be imported" in caplog.messages
    assert calls.add.get_result(done.id).is_finished


def test_results_are_kept_for_a_time() -> None:
    run(calls.add, 1)
    calls.elsewhere.enqueue()
    drain_jobs()
    kept = dict(seen("SELECT task, date_trunc('second', expires_at - finished_at) FROM salon_jobs_job_result"))
    assert kept == {"tests.backend.calls.add": timedelta(days=1), "tests.backend.calls.elsewhere": timedelta(hours=1)}
    calls.add.using(keep_result=timedelta(minutes=1)).enqueue(9)
    drain_jobs()
    [(kept_for,)] = seen("SELECT expires_at - finished_at FROM salon_jobs_job_result WHERE value = '10'")
    assert timedelta(minutes=1) <= kept_for < timedelta(minutes=1, seconds=1)


def test_unkept_result_is_not_written() -> None:
    result = calls.forgotten.enqueue()
    assert calls.forgotten.get_result(result.id).status == TaskResultStatus.READY
    drain_jobs()
    assert seen("SELECT FROM salon_jobs_job_result") == []
    with pytest.raises(TaskResultDoesNotExist):
        calls.forgotten.get_result(result.id)
    with override_settings(SALON_JOBS={**SALON_JOBS, "RESULT_RETENTION": timedelta(0)}):
        result = calls.add.enqueue(1)
        drain_jobs()
    assert seen("SELECT FROM salon_jobs_job_result") == []


def test_kept_job_is_no_kept_result() -> None:
    """None would look like what the task returned."""
    with override_settings(SALON_JOBS={**SALON_JOBS, "RETAIN_SUCCEEDED": timedelta(days=1)}):
        nothing, forgotten = calls.give.enqueue("none"), calls.forgotten.enqueue()
        drain_jobs()
    assert calls.give.get_result(nothing.id).return_value is None
    assert get_job(forgotten).state == "succeeded"
    with pytest.raises(TaskResultDoesNotExist):
        forgotten.refresh()


def test_failure_is_one_log_record(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are Django's; a traceback has no frames of ours."""
    monkeypatch.setattr(logging.getLogger(LOGGER), "disabled", False)  # a command of an earlier test may configure logs
    with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, logger=LOGGER):
        done = run(calls.add, 1)
        failed = run(calls.fail)
    records = [record for record in caplog.records if record.name == LOGGER]
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("INFO", f"Task id={done.id} path=tests.backend.calls.add state=RUNNING"),
        ("INFO", f"Task id={done.id} path=tests.backend.calls.add state=SUCCESSFUL"),
        ("INFO", f"Task id={failed.id} path=tests.backend.calls.fail state=RUNNING"),
    ]
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    [(traceback,)] = seen("SELECT traceback FROM salon_jobs_job_error")
    shown = calls.fail.get_result(failed.id).errors[0].traceback
    for text in (traceback, record.exc_text or "", shown):
        assert text.count("  File ") == 1
        assert "tests/backend/calls.py" in text


def test_signals_of_failure() -> None:
    with received(task_started) as started, received(task_finished) as finished:
        done = run(calls.flaky, 99)
    assert (done.status, done.attempts, len(done.errors)) == (TaskResultStatus.FAILED, 3, 3)
    assert len(started) == 3
    [(sender, result)] = finished
    assert sender is SalonJobsBackend
    assert (result.id, result.status, result.attempts) == (done.id, TaskResultStatus.FAILED, 3)
    assert result.errors == done.errors


def test_signals_follow_commits() -> None:
    states: list[Any] = []

    def look_at_start(task_result: Any, **_: Any) -> None:
        task_result.refresh()
        states.append((task_result.status, task_result.attempts, task_result.finished_at))

    def look_at_end(task_result: Any, **_: Any) -> None:
        states.append(
            seen("SELECT state FROM salon_jobs_job WHERE public_id = %s", task_result.id)
            or seen("SELECT value FROM salon_jobs_job_result WHERE public_id = %s", task_result.id)
        )

    with connected(task_started, look_at_start), connected(task_finished, look_at_end):
        run(calls.add, 1)
        run(calls.fail)
    running = (TaskResultStatus.RUNNING, 1, None)
    assert states == [running, [("2",)], running, [("failed",)]]


def test_only_failing_start_receiver_fails_run() -> None:
    heard: list[Any] = []
    refuse = raises(RuntimeError("not today"))

    def hear(sender: Any, **_: Any) -> None:
        heard.append(sender.name)

    with connected(task_enqueued, refuse), connected(task_finished, refuse), connected(job_enqueued, hear):
        assert run(calls.add, 1).return_value == 2
    assert heard == ["tests.backend.calls.add"], "a signal of jobs reaches its receivers"
    with connected(task_started, refuse):
        done = run(calls.add, 1)
    assert done.status == TaskResultStatus.FAILED
    assert done.errors[0].exception_class is RuntimeError


def test_declaration_has_options_of_task() -> None:
    """Other jobs pay for no signal."""
    declaration = registry.get_declaration("tests.backend.calls.flaky")
    assert declaration.timeouts is not None
    assert declaration.timeouts.timeout == timedelta(seconds=20)
    assert declaration.backoff == calls.SOON
    assert declaration.options.max_attempts == 3
    assert declaration.on_end is not None
    assert not job_finished.receivers


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({"backend": "newer"}, "TASKS of this release has no alias 'newer'"),
        ({"args": [1, 2, 3]}, "no argument 3 by position in this release"),
        ({"kwargs": {"size": 1}}, "no argument 'size' in this release"),
    ],
)
def test_call_of_newer_release_is_left(changes: dict[str, Any], unknown: str) -> None:
    """It keeps its only attempt for a worker of that release, whose TASKS or function has what this one lacks."""
    result = calls.add.enqueue(1)
    change("UPDATE salon_jobs_job SET payload = payload || %s::jsonb", json.dumps(changes))
    [job] = drain_jobs(raise_errors=False)
    assert isinstance(job.outcome, Left)
    assert str(job.outcome.error) == f"task 'tests.backend.calls.add': {unknown}"
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("queued", 0)]
    change(
        """UPDATE salon_jobs_job SET run_at = now(), payload = '{"args": [1], "kwargs": {}, "backend": "default"}'"""
    )
    drain_jobs()
    result.refresh()
    assert (result.status, result.return_value, len(result.worker_ids)) == (TaskResultStatus.SUCCESSFUL, 2, 1)


@pytest.mark.parametrize(("args", "kwargs"), [([1, 2, 3], {}), ([], {"size": 1}), ([], {})])
def test_call_that_never_fitted_fails(args: list[Any], kwargs: dict[str, Any]) -> None:
    """No release takes what the function did not take where it was enqueued."""
    result = calls.add.enqueue(*args, **kwargs)
    drain_jobs(raise_errors=False)
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == (TaskResultStatus.FAILED, TypeError)


def test_drain_tells_what_was_left() -> None:
    calls.add.enqueue(1)
    change("""UPDATE salon_jobs_job SET payload = payload || '{"kwargs": {"size": 1}}'""")
    with pytest.raises(AssertionError, match="no argument 'size' in this release"):
        drain_jobs()


def test_end_of_job_without_alias_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    calls.add.using(backend="open", max_attempts=1).enqueue(1)
    change("UPDATE salon_jobs_job SET expires_at = now() - interval '1 s'")
    with override_settings(TASKS={"default": {"BACKEND": BACKEND}}), caplog.at_level("ERROR", "salon_jobs"):
        [job] = drain_jobs(raise_errors=False)
    assert isinstance(job.outcome, NotStarted)
    assert f"task_finished of job {job.id} could not be sent" in caplog.messages


@pytest.mark.parametrize(
    "payload", ["[]", "[" * 3000 + "]" * 3000, '{"args": [], "kwargs": {}, "backend": "default", "task": 5}']
)
def test_malformed_payload_fails_its_job(payload: str) -> None:
    change("INSERT INTO salon_jobs_job (task, payload) VALUES (%s, %s)", "tests.backend.calls.add", payload)
    [ended] = drain_jobs(raise_errors=False)
    assert isinstance(ended.outcome, Errored)
    assert seen("SELECT state FROM salon_jobs_job") == [("failed",)]


def test_option_unset_by_enqueue_comes_back() -> None:
    declared: Any = calls.forgotten
    first: Any = changed(declared, {"keep_result": None})  # as a module keeps it: quick = f; f = f.using(…)
    result = first.enqueue()
    assert declared.get_result(result.id).task == first
    assert len(drain_jobs()) == 1


def test_attempt_after_rescue_names_own_worker() -> None:
    result = calls.add.enqueue(1)
    change(
        "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, worker_id)"
        " SELECT id, 1, 'Died', 4711 FROM salon_jobs_job"
    )
    drain_jobs()
    [worker] = calls.add.get_result(result.id).worker_ids
    assert worker not in ("", "4711")


@pytest.fixture
def customers(stores: list[UUID]) -> list[UUID]:
    """Give each store a customer with its number as name."""
    for number, store_id in enumerate(stores):
        change(
            "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, %s, '')", uuid4(), store_id, str(number)
        )
    return stores


@pytest.fixture
def web(customers: list[UUID]) -> Iterator[list[UUID]]:
    """Enqueue and read as the web role."""
    with override_settings(SALON_JOBS={**SALON_JOBS, "DATABASE": "web"}):
        yield customers
    connections["web"].close()


def stores_of_jobs() -> list[UUID | None]:
    return [row[0] for row in seen("SELECT store_id FROM salon_jobs_job ORDER BY id")]


def test_task_runs_in_store_of_context(customers: list[UUID]) -> None:
    with tenant_context(customers[1]):
        result = calls.store_and_customers.enqueue()
    assert stores_of_jobs() == [customers[1]]
    assert [job.store_id for job in drain_jobs()] == [customers[1]]
    assert calls.store_and_customers.get_result(result.id).return_value == [str(customers[1]), ["1"]]


def test_retries_and_coroutines_keep_the_store(customers: list[UUID]) -> None:
    with tenant_context(customers[0]):
        flaky, later = calls.flaky.enqueue(2), calls.double.enqueue(4)
    drain_jobs(raise_errors=False)
    assert calls.flaky.get_result(flaky.id).return_value == 3
    assert calls.double.get_result(later.id).return_value == 8


def test_web_role_enqueues_for_its_store(web: list[UUID]) -> None:
    """It also enqueues for no store."""
    with tenant_context(web[0]):
        of_store = calls.store_and_customers.enqueue()
        assert calls.store_and_customers.get_result(of_store.id).status == TaskResultStatus.READY
    of_none = calls.store_and_customers.enqueue()
    assert stores_of_jobs() == [web[0], None]
    with override_settings(SALON_JOBS=SALON_JOBS):
        drain_jobs()
    for result, returned in ((of_store, [str(web[0]), ["0"]]), (of_none, [None, []])):
        result.refresh()
        assert (len(result.worker_ids), result.return_value) == (1, returned)


def test_web_role_reads_failures_by_id(web: list[UUID]) -> None:
    with tenant_context(web[0]):
        result = calls.fail.enqueue("secret")
    with override_settings(SALON_JOBS=SALON_JOBS):
        drain_jobs(raise_errors=False)
    with tenant_context(web[1]):
        assert calls.fail.get_result(result.id).errors[0].exception_class is ValueError
        with connections["web"].cursor() as cursor:
            for table in ("salon_jobs_job", "salon_jobs_job_error", "salon_jobs_job_result"):
                cursor.execute(f"SELECT count(*) FROM {table}")
                assert cursor.fetchone() == (0,), table
    with pytest.raises(TaskResultDoesNotExist):
        calls.fail.get_result(str(uuid4()))
