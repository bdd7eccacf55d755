"""Gives values of every kind and size to the public functions: each is refused by a short error of ours.

The caller's transaction can still commit.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction

from salon_jobs import Backoff, control, emit, enqueue_job, task
from salon_jobs.core.errors import SalonJobsError
from salon_jobs.jobs.registry import unregister
from salon_jobs.schedules.cron import CronExpression
from tests import tasks
from tests.support import store_id_of

LONG = "x" * 2_000_000
HOSTILE: dict[str, Any] = {
    "none": None,
    "int": 5,
    "huge int": 10**10_000,
    "bytes": b"x" * 20_000,
    "long": LONG,
    "nul": "a\0b" * 100_000,
    "surrogate": "\ud800",
    "controls": "\x1b[2J\x9b\u202e\u2028" * 1000,
    "list": ["x" * 1000] * 10_000,
    "dict": {"x": LONG},
    "nan": float("nan"),
    "object": object(),
}
STORE = store_id_of(1)


def enqueue_with(**options: Any) -> object:
    return tasks.system.using(**options).enqueue()


def enqueue_with_option(name: str) -> Callable[[Any], object]:
    return lambda value: enqueue_with(**{name: value})


def emit_with(name: str) -> Callable[[Any], object]:
    valid: dict[str, Any] = {"aggregate_type": "rn::jobs:::test-system", "event": "e", "payload": {}}
    return lambda value: emit(**(valid | {name: value}))


DOORS: dict[str, Callable[[Any], object]] = {
    "enqueue_job": lambda value: enqueue_job(value, {}),
    "payload": lambda value: enqueue_job("test-system", value),
    "argument": lambda value: enqueue_job("test-system", {str(value)[:100_000]: value}),
    **{
        name: enqueue_with_option(name)
        for name in (
            "queue",
            "priority",
            "max_attempts",
            "run_at",
            "run_in",
            "expires_at",
            "job_key",
            "job_key_mode",
            "concurrency_key",
            "keep_result",
        )
    },
    "unknown option": lambda value: enqueue_with(**{f"no {str(value)[:1_000_000]}": value}),
    "task name": lambda value: task(name=value)(lambda: None),
    "function": task(name="hostile"),
    "backoff": lambda value: task(name="hostile", backoff=value)(lambda: None),
    "retry_on": lambda value: task(name="hostile", retry_on=value)(lambda: None),
    "timeout": lambda value: task(name="hostile", timeout=value)(lambda: None),
    "backoff base": lambda value: Backoff(base=value),
    "cron": CronExpression,
    "cron field": lambda value: CronExpression(f"{str(value)[:1_000_000]} * * * *"),
    "time zone": lambda value: CronExpression("0 1 * * *", value),
    "pause queue": lambda value: control.pause(queue=value),
    "pause task": lambda value: control.pause(task=value),
    "pause store": lambda value: control.pause(store_id=value),
    "pause by": lambda value: control.pause(queue="q", by=value),
    "resume queue": lambda value: control.resume(queue=value),
    "limit key": lambda value: control.limit(task="t", key=value, rate=1),
    "limit task": lambda value: control.limit(task=value, key="k", rate=1),
    "max_concurrency": lambda value: control.limit(queue="q", max_concurrency=value),
    "rate": lambda value: control.limit(queue="q", rate=value),
    "retry_jobs": control.retry_jobs,
    "retry_jobs of several": lambda value: control.retry_jobs([value]),
    "retry at": lambda value: control.retry_jobs([1], at=value),
    "cancel_jobs": control.cancel_jobs,
    "discard_jobs": lambda value: control.discard_jobs([value]),
    "change priority": lambda value: control.change_jobs([1], priority=value),
    "change queue": lambda value: control.change_jobs([1], queue=value),
    **{f"emit {name}": emit_with(name) for name in ("aggregate_type", "aggregate_id", "event", "headers")},
    "pause_destination": control.pause_destination,
    "pause_destination by": lambda value: control.pause_destination("rn::jobs:::test-system", by=value),
    "retry_messages": control.retry_messages,
    "skip_messages": lambda value: control.skip_messages([value]),
    "unpark": control.unpark,
    "unpark several": lambda value: control.unpark([value]),
    "unpark ids": lambda value: control.unpark([("x", value)]),
    "unpark destination": lambda value: control.unpark(aggregate_type=value),
    "replay": lambda value: control.replay_messages(value, requested_by="me", reason="because"),
    "replay ids": lambda value: control.replay_messages(
        control.MessageCriteria(ids=value), requested_by="me", reason="because"
    ),
    "replay since": lambda value: control.replay_messages(
        control.MessageCriteria(aggregate_type="x", since=value), requested_by="me", reason="because"
    ),
    "run_cron_entry": control.run_cron_entry,
}
# Declarations are read when Django starts; there our errors are those of Python too.
OURS = (SalonJobsError, ValueError)


@pytest.mark.parametrize("door", DOORS)
def test_whatever_is_given_the_error_is_short_and_the_transaction_goes_on(database: None, door: str) -> None:
    for name, value in HOSTILE.items():
        with transaction.atomic(), connections["default"].cursor() as cursor:
            try:
                with transaction.atomic(savepoint=False):
                    DOORS[door](value)
            except OURS as error:
                text = str(error)
                assert text, name
                assert len(text) < 5000, name
                assert not any(each in text for each in "\0\x1b\x9b\u202e\u2028"), (name, text)
            finally:
                unregister("hostile")
            transaction.set_rollback(False)
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,), name
            transaction.set_rollback(True)


COMMANDS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "pause": lambda text: ("salon_jobs", "pause", "--queue", text, "--yes"),
    "resume": lambda text: ("salon_jobs", "resume", "--task", text),
    "limit": lambda text: ("salon_jobs", "limit", "--task", "t", "--key", text, "--rate", "1"),
    "jobs": lambda text: ("salon_jobs", "jobs", "--task", text, "--queue", text),
    "since": lambda text: ("salon_jobs", "jobs", "--since", text),
    "store": lambda text: ("salon_jobs", "pause", "--store", text, "--yes"),
    "number": lambda text: ("salon_jobs", "jobs", "--limit", text),
    "show": lambda text: ("salon_jobs", "show", text),
    "retry": lambda text: ("salon_jobs", "retry", text, "--yes"),
    "subcommand": lambda text: ("salon_jobs", text),
    "option": lambda text: ("salon_jobs", "jobs", f"--{text}"),
    "message": lambda text: ("salon_jobs", "messages", "show", text),
    "destination": lambda text: ("salon_jobs", "messages", "pause", text),
    "cron": lambda text: ("salon_jobs", "cron", "run", text),
    "inbox": lambda text: ("salon_jobs", "inbox", "show", text),
    "worker": lambda text: ("runworker", "--health-addr", text),
    "scheduler": lambda text: ("runscheduler", "--burst", "--at", text),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", ["x" * 100_000, "\x1b[2J\x9b1m\u202e\u2028\x7f"], ids=["long", "controls"])
def test_commands_answer_in_few_visible_words(database: None, command: str, text: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    said = ""
    try:
        call_command(*COMMANDS[command](text), stdout=out, stderr=err, no_color=True)
    except CommandError as error:
        said = str(error)
    said += out.getvalue() + err.getvalue()
    assert len(said) < 8000
    assert not any(each in said for each in "\x1b\x9b\u202e\u2028\x7f"), ascii(said)


def test_a_name_that_is_none_is_named(database: None) -> None:
    with pytest.raises(SalonJobsError, match="the name of a task is a string, not None"):
        enqueue_job(None, {})  # type: ignore[arg-type]
    with pytest.raises(SalonJobsError, match="queue must be a string"):
        control.pause(queue=b"x")  # type: ignore[arg-type]
    with pytest.raises(SalonJobsError, match="aware datetime"):
        control.retry_jobs([1], at=datetime.now(UTC).isoformat())  # type: ignore[arg-type]
