"""Gives values of every kind and size to the public functions: each is refused by a short error of ours.

The caller's transaction can still commit.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast
from uuid import UUID

import pytest
from django.core.management import BaseCommand, CommandError, call_command, load_command_class
from django.db import connections, transaction

from salon_jobs import Backoff, control, emit, enqueue_job, get_flow, get_job, task
from salon_jobs.core.errors import SalonJobsError
from salon_jobs.jobs.fan_out import fan_out_progress
from salon_jobs.jobs.registry import unregister
from salon_jobs.schedules.cron import CronExpression
from salon_jobs.schedules.stored import save_schedule
from salon_jobs.verbs import VERBS, Verb
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


def declare_with(name: str) -> Callable[[Any], object]:
    def declare(value: Any) -> object:
        options: dict[str, Any] = {"name": "hostile", name: value}
        return task(**options)(lambda: None)

    return declare


def limit_with(name: str, **others: Any) -> Callable[[Any], object]:
    return lambda value: control.limit(**(others | {name: value}))


def replay_with(name: str, **others: Any) -> Callable[[Any], object]:
    def replay(value: Any) -> object:
        criteria = control.MessageCriteria(**(others | {name: value}))
        return control.replay_messages(criteria, requested_by="me", reason="because")

    return replay


def emit_with(name: str) -> Callable[[Any], object]:
    valid: dict[str, Any] = {"aggregate_type": "rn::jobs:::test-system", "event": "e", "payload": {}}
    return lambda value: emit(**(valid | {name: value}))


DOORS: dict[str, Callable[[Any], object]] = {
    "enqueue_job": lambda value: enqueue_job(value, {}),
    "payload": lambda value: enqueue_job("test-system", value),
    "argument": lambda value: enqueue_job("test-system", {str(value)[:100_000]: value}),
    **{name: enqueue_with_option(name) for name in ("queue", "priority", "max_attempts", "run_at", "run_in")},
    **{
        name: enqueue_with_option(name)
        for name in ("expires_at", "expires_in", "job_key", "job_key_mode", "keep_result")
    },
    "concurrency_key": enqueue_with_option("concurrency_key"),
    "unknown option": lambda value: enqueue_with(**{f"no {str(value)[:1_000_000]}": value}),
    **{f"task {name}": declare_with(name) for name in ("name", "backoff", "retry_on", "timeout")},
    "function": task(name="hostile"),
    "backoff base": lambda value: Backoff(base=value),
    "cron": CronExpression,
    "cron field": lambda value: CronExpression(f"{str(value)[:1_000_000]} * * * *"),
    "time zone": lambda value: CronExpression("0 1 * * *", value),
    "pause queue": lambda value: control.pause(queue=value),
    "pause task": lambda value: control.pause(task=value),
    "pause store": lambda value: control.pause(store_id=value),
    "pause by": lambda value: control.pause(queue="q", by=value),
    "resume queue": lambda value: control.resume(queue=value),
    "limit key": limit_with("key", task="t", rate=1),
    "limit task": limit_with("task", key="k", rate=1),
    **{f"limit {name}": limit_with(name, queue="q") for name in ("max_concurrency", "rate")},
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
    "replay ids": replay_with("ids"),
    "replay since": replay_with("since", aggregate_type="x"),
    "run_cron_entry": control.run_cron_entry,
}
# Declarations are read when Django starts; there our errors are those of Python too.
OURS = (SalonJobsError, ValueError)


@pytest.mark.parametrize("door", DOORS)
def test_hostile_value_leaves_transaction_usable(database: None, door: str) -> None:
    """The error is short."""
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


# What names rows, as code and people may give it.
NAMES: dict[str, Any] = {
    **HOSTILE,
    "row beyond": 10**30,
    "negative": -1,
    "true": True,
    "fraction": 1.5,
    "text": "…",
    "empty": "",
    "nul alone": "\0",
    "uuid": UUID(int=9),
    "uuid as text": str(UUID(int=9)),
    "key": "store:\ud800",
    "key nul": "queue:a\0",
}
TAKES: dict[str, dict[str, Any]] = {"change": {"priority": 1}, "override": {"line": "0 3 * * *"}}


def verb_of(verb: Verb) -> Callable[[Any], object]:
    """Return what does a verb to the rows that are named, as the admin and the commands do."""
    parameters = inspect.signature(verb.change).parameters
    given = {name: value for name, value in {"by": "me", "using": "operator"}.items() if name in parameters}
    return lambda value: verb.change(value, **TAKES.get(verb.name, {}), **given)


NAMED: dict[str, Callable[[Any], object]] = {
    # Their rows are read before, by the admin.
    **{
        f"{verb.of.__name__} {verb.name}": verb_of(verb)
        for verb in VERBS
        if verb.name not in ("run_again", "replay", "limit", "save") and verb.change is not save_schedule
    },
    "run_again": lambda value: control.run_again(value, {}),
    "run_schedule of several": lambda value: control.run_schedule(cast("Any", [value, value])),
    "get_job": get_job,
    "get_flow": get_flow,
    "fan_out_progress": fan_out_progress,
    **{f"replay {name}": replay_with(name) for name in ("ids", "aggregate_type")},
    **{
        f"replay {name}": replay_with(name, aggregate_type="x", from_id=1)
        for name in ("from_id", "to_id", "aggregate_id", "event")
    },
}


@pytest.mark.parametrize("door", NAMED)
def test_name_of_no_row_leaves_transaction_usable(database: None, door: str) -> None:
    """It is an error of ours, or a result."""
    for name, value in NAMES.items():
        for given in (value, [value]):
            with transaction.atomic(using="operator"), transaction.atomic():
                text = "no such row"
                try:
                    with transaction.atomic(using="operator", savepoint=False), transaction.atomic(savepoint=False):
                        NAMED[door](given)
                except SalonJobsError as error:
                    text = str(error)
                assert 0 < len(text) < 5000, name
                for alias in ("default", "operator"):
                    transaction.set_rollback(False, using=alias)
                    with connections[alias].cursor() as cursor:
                        cursor.execute("SELECT 1")
                    transaction.set_rollback(True, using=alias)


COMMANDS = [
    *("salon_jobs pause --queue TEXT --yes", "salon_jobs resume --task TEXT", "salon_jobs pause --store TEXT --yes"),
    *("salon_jobs limit --task t --key TEXT --rate 1", "salon_jobs jobs --task TEXT --queue TEXT"),
    *("salon_jobs jobs --since TEXT", "salon_jobs jobs --limit TEXT", "salon_jobs jobs --TEXT", "salon_jobs TEXT"),
    *("salon_jobs list --task TEXT", "salon_jobs list --queue TEXT", "salon_jobs list --key TEXT"),
    *("salon_jobs list --error-class TEXT", "salon_jobs list --store TEXT", "salon_jobs cancel --task TEXT --yes"),
    *("salon_jobs discard --queue TEXT --yes", "salon_jobs inbox retry TEXT --yes", "salon_jobs inbox --consumer TEXT"),
    *(f"salon_jobs messages {each} TEXT --yes" for each in ("retry", "skip", "send-skipped")),
    *(f"salon_jobs messages list --{each} TEXT" for each in ("aggregate-type", "aggregate-id", "event")),
    *(f"salon_jobs messages replay --{each}-id TEXT --aggregate-type x --dry-run" for each in ("from", "to")),
    *("salon_jobs messages replay 1 --by TEXT --reason TEXT --yes", "salon_jobs messages parked --aggregate-type TEXT"),
    *("salon_jobs messages unpark --aggregate-type TEXT --yes", "salon_jobs cron pause TEXT"),
    *("salon_jobs messages unpark --aggregate-type x --aggregate-id TEXT --yes", "salon_jobs cron override x TEXT"),
    *(f"salon_jobs schedules {each} TEXT" for each in ("list", "pause", "delete", "run", "change --line x")),
    *("salon_jobs limit --queue TEXT --rate 1", "salon_jobs prune --task TEXT --state failed --older-than 1h --yes"),
    *("salon_jobs show TEXT", "salon_jobs retry TEXT --yes", "salon_jobs messages show TEXT"),
    *("salon_jobs messages pause TEXT", "salon_jobs cron run TEXT", "salon_jobs inbox show TEXT"),
    *("runworker --health-addr TEXT", "runscheduler --burst --at TEXT"),
]


TEXTS = {
    "long": "x" * 100_000,
    "controls": "\x1b[2J\x9b1m\u202e\u2028\x7f",
    "nul": "a\0b",
    "surrogate": "\udcff",
    "row beyond": str(10**30),
    "uuid": str(UUID(int=9)),
    "negative": "-1",
    "digits": "9" * 5000,
}


@cache
def command_of(name: str) -> BaseCommand:
    """Return a command that makes its parser once, which takes longer than all that it does with a hostile text."""
    command = load_command_class("salon_jobs", name)
    command.create_parser = cache(command.create_parser)  # type: ignore[method-assign]
    return command


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_answer_in_few_words(database: None, command: str) -> None:
    for kind, text in TEXTS.items():
        out, err = io.StringIO(), io.StringIO()
        said = ""
        try:
            name, *words = [word.replace("TEXT", text) for word in command.split()]
            call_command(command_of(name), *words, stdout=out, stderr=err, no_color=True)
        except CommandError as error:
            said = str(error)
        said += out.getvalue() + err.getvalue()
        assert len(said) < 8000, kind
        assert not any(each in said for each in "\x1b\x9b\u202e\u2028\x7f"), (kind, ascii(said))


def test_wrong_type_is_named(database: None) -> None:
    with pytest.raises(SalonJobsError, match="the name of a task is a string, not None"):
        enqueue_job(None, {})  # type: ignore[arg-type]
    with pytest.raises(SalonJobsError, match="queue must be a string"):
        control.pause(queue=b"x")  # type: ignore[arg-type]
    with pytest.raises(SalonJobsError, match="aware datetime"):
        control.retry_jobs([1], at=datetime.now(UTC).isoformat())  # type: ignore[call-overload]
