"""Enqueueing through Django's interface: what is validated, what is stored, and what the caller gets."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import django
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from salon_jobs import Backoff
from salon_jobs.backend import SalonJobsBackend
from salon_jobs.backend import call as call_of
from salon_jobs.backend import task as own_task
from salon_jobs.backend.framework import InvalidTask, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from salon_jobs.core.errors import PayloadInvalid
from salon_jobs.core.units import LATEST
from salon_jobs.jobs import registry
from salon_jobs.testing import drain_jobs
from tests.backend import calls
from tests.backend.aliases import BACKEND, TASKS
from tests.backend.django_tasks_api import LOGGER, PACKAGE, default_task_backend, task, task_backends, task_enqueued
from tests.backend.scene import received
from tests.support import seen

pytestmark = pytest.mark.usefixtures("database")


def rows() -> list[dict[str, Any]]:
    """Return the jobs, oldest first."""
    columns = "task, store_id, queue, priority, max_attempts, run_at, payload::text, job_key, public_id, state"
    names = [name.split("::")[0] for name in columns.split(", ")]
    return [dict(zip(names, row, strict=True)) for row in seen(f"SELECT {columns} FROM salon_jobs_job ORDER BY id")]


def test_backend_supports_everything() -> None:
    backend = task_backends["default"]
    assert type(backend) is SalonJobsBackend
    supports = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
    assert [getattr(backend, name) for name in supports] == [True] * 4


def test_enqueue_returns_logs_and_signals_result(caplog: pytest.LogCaptureFixture) -> None:
    with received(task_enqueued) as sent, caplog.at_level("DEBUG", LOGGER):
        result = default_task_backend.enqueue(calls.add, (2,), {"right": 3})
    assert sent == [(SalonJobsBackend, result)]
    logged = f"Task id={result.id} path=tests.backend.calls.add enqueued backend=default"
    assert (LOGGER, 10, logged) in caplog.record_tuples
    assert result.task is calls.add
    assert (result.status, result.is_finished) == (TaskResultStatus.READY, False)
    assert (str(UUID(result.id)), UUID(result.id).version) == (result.id, 4)
    assert seen("SELECT created_at FROM salon_jobs_job") == [(result.enqueued_at,)]
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.args, result.kwargs, result.backend) == ([2], {"right": 3}, "default")
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert isinstance(result, TaskResult)
    with pytest.raises(ValueError, match="not finished yet"):
        _ = result.return_value
    [row] = rows()
    assert json.loads(row.pop("payload")) == {"args": [2], "kwargs": {"right": 3}, "backend": "default"}
    del row["run_at"]
    expected = {"task": "tests.backend.calls.add", "store_id": None, "state": "queued", "public_id": UUID(result.id)}
    assert row == {**expected, "queue": "default", "priority": 0, "max_attempts": 1, "job_key": None}


def test_enqueue_is_one_query_in_callers_transaction() -> None:
    with transaction.atomic():
        with CaptureQueriesContext(connection) as captured:
            result = calls.add.enqueue(1)
        assert len(captured) == 1
        assert rows() == [], "nobody else sees it before the commit"
        assert calls.add.get_result(result.id).status == TaskResultStatus.READY
        transaction.set_rollback(True)
    assert rows() == []


def test_arguments_come_back_as_json() -> None:
    """Tuples come back as lists, and bytes as text."""
    values = ["é\u2028 \\u0000 \\\\u0000 \"'%s{}", 2**70, -(2**70), 0.1, -0.0, 1e15, 2.5e-300, "", {}, []]
    result = calls.echo.enqueue(*values, (1, 2), b"text", nested={"a": (1, {"b": (None, True, 1.5)})})
    assert result.args == [*values, [1, 2], "text"]
    assert result.kwargs == {"nested": {"a": [1, {"b": [None, True, 1.5]}]}}
    assert calls.echo.get_result(result.id) == result
    drain_jobs()
    assert calls.echo.get_result(result.id).return_value == [result.args, result.kwargs]


def test_arguments_that_are_no_json_are_refused() -> None:
    """The transaction goes on."""
    with transaction.atomic():
        for value in (object(), {1, 2}, datetime(2030, 1, 1, tzinfo=UTC), {"a": [timedelta(1)]}, 1j):
            for arguments, named in (((value,), {}), ((), {"key": value})):
                with pytest.raises(TypeError, match="Unsupported type"):
                    calls.echo.enqueue(*arguments, **named)
        for value in (float("nan"), float("inf"), "a\0b", {"a\0": 1}, ["\\\0"], "\ud800", b"\xff"):
            with pytest.raises(ValueError, match=r"JSON|NUL|surrogates|Unsupported"):
                calls.echo.enqueue(value)
        calls.add.enqueue(1)
    assert len(rows()) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "nan is not a number in JSON - at `{}`"),
        ({"a": [-float("inf")]}, "-inf is not a number in JSON - at `{}.a[0]`"),
        ("a\0b", "it contains a NUL character, which PostgreSQL cannot keep; remove it - at `{}`"),
        ("\ud800", "it contains a lone surrogate, which is no character of UTF-8; remove it - at `{}`"),
        ({"\0": 1}, "it contains a NUL character, which PostgreSQL cannot keep; remove it - at `{}, a key`"),
    ],
)
def test_refused_value_is_named(value: Any, why: str) -> None:
    """By the task and the argument, however it is passed, to each function that enqueues."""
    of_echo = "task 'tests.backend.calls.echo': an argument cannot be JSON: "
    of_reset = "task 'tests.backend.calls.send_reset': an argument cannot be JSON: "
    reset = registry.get_declaration("tests.backend.calls.send_reset")
    doors: list[tuple[Callable[[], object], str, str]] = [
        (lambda: calls.echo.enqueue(1, value), of_echo, "$.args[1]"),
        (lambda: calls.echo.enqueue(note=value), of_echo, "$.note"),
        (lambda: calls.send_reset.enqueue(value, "t"), of_reset, "$.user"),
        (lambda: calls.send_reset.enqueue(7, "t", note=value), of_reset, "$.note"),
        (lambda: calls.send_reset.enqueue(7, nothing=value), of_reset, "$.kwargs.nothing"),
        (lambda: reset.job_of((), {"user": 7, "token": value}), of_reset, "$.token"),
        (lambda: call_of(cast("Any", calls.send_reset), 7, value), of_reset, "$.token"),
    ]
    for enqueue, of, path in doors:
        with pytest.raises(PayloadInvalid, match=re.escape(f"{of}{why.format(path)}")) as refused:
            enqueue()
        assert isinstance(refused.value, ValueError), "as Django's own backends raise it"
    assert rows() == []


def test_higher_priorities_run_first() -> None:
    for priority in (-5, 100, 0, 7.0, -100):
        result = calls.describe.using(priority=priority).enqueue(note=str(priority))
        assert calls.describe.get_result(result.id).task.priority == priority
    assert [row["priority"] for row in rows()] == [5, -100, 0, -7, 100]
    drain_jobs()
    assert [result.kwargs["note"] for result in calls.seen] == ["100", "7.0", "0", "-5", "-100"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"priority": priority}, "whole number between -100 and 100") for priority in (-101, 101, 1.5)],
        *[({"queue_name": name, "backend": "open"}, "queue_name must be a string") for name in ("q" * 101, "a\0b")],
        ({"queue_name": "other"}, "Queue 'other' is not valid for backend"),
        ({"run_after": datetime(2030, 1, 1)}, "aware datetime"),  # noqa: DTZ001
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"timeout": 5}, "timeout must be a timedelta"),
        ({"backoff": 5}, "backoff must be a salon_jobs.Backoff, not 5"),
        ({"job_key": "{nothing}"}, r"job_key uses \['nothing'\], which are not arguments"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        calls.add.using(**options)


def test_empty_queues_setting_allows_any_name() -> None:
    result = calls.elsewhere.using(queue_name="any name").enqueue()
    assert [row["queue"] for row in rows()] == ["any name"]
    assert calls.elsewhere.get_result(result.id).task.queue_name == "any name"


def test_only_default_queue_without_setting() -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND}}):
        calls.add.enqueue(1)
        with pytest.raises(InvalidTask, match="not valid"):
            calls.mail.using(priority=1)


@pytest.mark.parametrize("zone", [timezone(timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Paris")])
def test_run_after_defers_and_comes_back(zone: tzinfo) -> None:
    run_after = datetime(2030, 7, 1, 12, 30, 15, 123456, tzinfo=zone)
    result = calls.add.using(run_after=run_after).enqueue(1)
    assert result.task.run_after is run_after
    assert [row["run_at"] for row in rows()] == [run_after]
    fetched = calls.add.get_result(result.id)
    assert fetched == result
    assert fetched.task.run_after is not None
    assert fetched.task.run_after.isoformat() == run_after.isoformat()
    assert drain_jobs() == []
    assert len(drain_jobs(now=run_after + timedelta(seconds=1))) == 1
    assert calls.add.get_result(result.id).task.run_after == run_after


def test_run_after_beyond_calendar_is_refused() -> None:
    late = calls.add.using(run_after=LATEST + timedelta(days=1))
    with pytest.raises(InvalidTask, match=r"tests\.backend\.calls\.add: run_at must lie between"):
        late.enqueue(1)


def test_non_tasks_are_refused() -> None:
    def inner() -> None:
        """Do nothing."""

    for function in (inner, print):
        with pytest.raises(InvalidTask, match="module level"):
            task(function)
    with pytest.raises(InvalidTask, match="first argument of 'context'"):
        task(takes_context=True)(calls.plain)


def test_enqueueing_from_coroutines() -> None:
    async def go() -> tuple[Any, Any]:
        result = await calls.add.aenqueue(2, right=5)
        fetched = await calls.add.aget_result(result.id)
        await sync_to_async(drain_jobs)()
        await result.arefresh()
        return result, fetched

    result, fetched = asyncio.run(go())
    assert fetched.status == TaskResultStatus.READY
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 7)


def test_aenqueue_is_one_query() -> None:
    def begin() -> CaptureQueriesContext:
        return CaptureQueriesContext(connections["default"]).__enter__()

    def end(captured: CaptureQueriesContext) -> int:
        captured.__exit__(None, None, None)
        connections["default"].close()
        return len(captured)

    async def go() -> int:
        captured = await sync_to_async(begin)()
        await calls.add.aenqueue(1)
        return await sync_to_async(end)(captured)

    assert asyncio.run(go()) == 1


def test_results_compare_hash_copy_and_pickle() -> None:
    result = calls.add.using(priority=3, run_after=datetime(2030, 1, 1, tzinfo=UTC)).enqueue(1, right=2)
    fetched = calls.add.get_result(result.id)
    assert fetched == result
    assert fetched is not result
    assert fetched != calls.add.enqueue(1, right=2)
    assert len({fetched, result}) == 1
    assert len({calls.add, calls.add.using(priority=0), calls.mail}) == 2
    for copied in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        assert copied == result
        assert copied.task.func is calls.add.func
        copied.refresh()
    assert pickle.loads(pickle.dumps(calls.flaky)) == calls.flaky
    with pytest.raises(ValueError, match="plain' is not a task"):
        pickle.loads(pickle.dumps(calls.renamed))


def test_options_of_backend_task_and_enqueue_come_back() -> None:
    many = calls.add.using(max_attempts=4, job_key="a", keep_result=timedelta(minutes=5), priority=1)
    for called, arguments in ((calls.add, [1]), (calls.elsewhere, []), (calls.flaky, [0]), (many, [1])):
        result = called.enqueue(*arguments)
        assert called.get_result(result.id) == result
        assert called.get_result(result.id).task == called
    assert calls.mail.get_result(calls.mail.enqueue("a@example.com").id).task == calls.mail
    assert [row["max_attempts"] for row in rows()] == [1, 2, 3, 4, 1]
    assert [(row["queue"], row["priority"]) for row in rows()][-2:] == [("default", -1), ("mail", -7)]


def test_decorator_takes_options_where_django_allows() -> None:
    decorate: Any = task
    if django.VERSION[:2] == (6, 0):
        with pytest.raises(TypeError):
            decorate(max_attempts=4)(calls.plain)
    else:
        assert decorate(max_attempts=4, timeout=timedelta(seconds=1))(calls.plain).max_attempts == 4


def test_options_of_declaration_cannot_change_per_enqueue() -> None:
    for options in ({"timeout": timedelta(seconds=1)}, {"backoff": Backoff(base=timedelta(seconds=9))}):
        changed: Any = calls.add.using(**options)
        with pytest.raises(InvalidTask, match=r"declare it there: add = add\.using\("):
            changed.enqueue(1)
    same = calls.flaky.using(timeout=timedelta(seconds=20), priority=2)
    same.enqueue(0)
    assert len(rows()) == 1


def test_job_key_replaces_waiting_job() -> None:
    """It keeps its id."""
    first = calls.keyed.enqueue("monday", note="first")
    second = calls.keyed.enqueue(day="monday", note="second")
    other = calls.keyed.enqueue("tuesday")
    assert second.id == first.id != other.id
    assert [row["job_key"] for row in rows()] == ["report-monday", "report-tuesday"]
    drain_jobs()
    assert calls.keyed.get_result(first.id).return_value == "second"
    assert calls.keyed.enqueue("monday").id != first.id
    with pytest.raises(TypeError, match="day"):
        calls.keyed.enqueue()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_atempts": 3}, r"TASKS\['default'\]\['OPTIONS'\] has an unknown key 'max_atempts'; did you mean"),
        ({"max_attempts": "3"}, r"TASKS\['default'\]\['OPTIONS'\]\['max_attempts'\] must be a whole number"),
        ({"max_attempts": 0}, r"\['max_attempts'\] must be a whole number from 1"),
        ({"keep_result": 0}, r"\['keep_result'\] must be a timedelta .*, not 0; write timedelta\(seconds=0\)"),
        ({"keep_result": timedelta(-1)}, r"\['keep_result'\] must be a timedelta from zero to 36,500 days"),
        ({"timeout": timedelta(0)}, r"\['timeout'\] must be a timedelta above zero"),
        ({"at_most_once": True, "max_attempts": 2}, r"\['at_most_once'\] does not go with max_attempts=2"),
    ],
)
def test_wrong_backend_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=message):
        SalonJobsBackend("default", {"OPTIONS": options})


def test_attempts_contradict_at_most_once_of_options() -> None:
    """As they do where one task declares both; unless the task itself may be repeated."""
    with override_settings(TASKS={**TASKS, "default": {"BACKEND": BACKEND, "OPTIONS": {"at_most_once": True}}}):
        said = r"does not go with max_attempts=5.*OPTIONS'\]; the task can have at_most_once=False"
        with pytest.raises(InvalidTask, match=said):
            task(calls.plain).using(max_attempts=5)
        task(calls.plain).using(max_attempts=5, at_most_once=False)
        task(calls.plain).using(max_attempts=1).enqueue()
        assert [row["max_attempts"] for row in rows()] == [1]


def test_backend_options_hold_for_tasks_as_they_are() -> None:
    """Those of a package, which nobody can edit: attempts, and no result; what a task says itself goes first."""
    options = {"max_attempts": 3, "keep_result": timedelta(0)}
    with override_settings(TASKS={**TASKS, "default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        result = task(calls.plain).enqueue()
        own = task(calls.plain).using(max_attempts=5, keep_result=timedelta(hours=1)).enqueue()
        assert [row["max_attempts"] for row in rows()] == [3, 5]
        drain_jobs()
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(result.id)
        assert default_task_backend.get_result(own.id).is_finished


def test_settings_may_move_task_to_backend() -> None:
    with override_settings(TASKS={**TASKS, "default": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}}):
        declared = task(calls.plain)
    assert not hasattr(declared, "max_attempts")
    result = declared.enqueue()
    drain_jobs()
    assert declared.get_result(result.id).return_value == 4


@own_task
def plain(number: int) -> int:
    """Return the number."""
    return number


@own_task(takes_context=True, max_attempts=3, timeout=timedelta(minutes=1), queue_name="mail", priority=3, job_key="k")
def with_options(context: Any, number: int) -> int:
    """Return the attempt."""
    return int(context.attempt) + number


def test_task_is_what_djangos_decorator_makes() -> None:
    own: object = task(len_of)
    assert isinstance(own, type(plain))


def len_of(text: str) -> int:
    """Return the length."""
    return len(text)


@pytest.mark.parametrize(
    ("name", "message"), [("delay", "; use enqueue("), ("adelay", "; use aenqueue("), ("missing", "")]
)
def test_methods_of_other_libraries_name_ours(name: str, message: str) -> None:
    message = f"'{type(plain).__name__}' object has no attribute '{name}'{message}"
    with pytest.raises(AttributeError, match=re.escape(message) + ("" if "use" in message else "$")):
        getattr(plain, name)


@pytest.mark.usefixtures("database")
def test_options_reach_the_worker() -> None:
    first, second = plain.enqueue(1), with_options.enqueue(number=2)
    assert (with_options.queue_name, with_options.priority) == ("mail", 3)
    drain_jobs()
    first.refresh()
    second.refresh()
    assert (first.return_value, second.return_value) == (1, 3)
    assert with_options.using(max_attempts=4).enqueue(number=1).id


def test_unknown_options() -> None:
    wrong: Any = {"max_atempts": 3}
    message = "a task has no option 'max_atempts'; did you mean 'max_attempts'?"
    for call in (own_task, plain.using):
        with pytest.raises(TypeError, match=re.escape(message)):
            call(**wrong)
    of_others: Any = {"countdown": 3}
    with pytest.raises(TypeError, match="a task has no option 'countdown'; use run_after="):
        plain.using(**of_others)


def test_options_of_another_backend(settings: Any) -> None:
    settings.TASKS = {**settings.TASKS, "dummy": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}}
    with pytest.raises(
        InvalidTask, match=r"max_attempts are options of SalonJobsBackend, but TASKS\['dummy'\] is another"
    ):
        own_task(backend="dummy", max_attempts=3)(len_of)
