"""``salon_jobs schedules``."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser
from rich.text import Text

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import EnqueueAction
from salon_jobs.core.text import short_repr
from salon_jobs.core.units import duration
from salon_jobs.db.statements import rows as rows_of
from salon_jobs.jobs import registry
from salon_jobs.jobs.results import JobHandle
from salon_jobs.management.arguments import add_options, os_user
from salon_jobs.management.arguments import duration as duration_option
from salon_jobs.management.output import Console
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.models import Schedule
from salon_jobs.schedules.stored import ScheduleHandle, timing_of
from salon_jobs.tenancy.context import context_of
from salon_jobs.verbs import verbs_of
from salon_jobs.words import became_of

_LISTED: Final = 200
_VERBS: Final = verbs_of(Schedule)


class ChangeSchedules(Subcommand):
    """Subcommand that lists the schedules that are rows, and changes, pauses, resumes, deletes or runs one."""

    name = "schedules"
    help = "List schedules by their next ticks, or change, pause, resume or delete one, or run it now."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = ("list", "change", "pause", "resume", "delete", "run")
        parser.add_argument("action", nargs="?", choices=actions, default="list", help="default list")
        parser.add_argument("key", nargs="?", metavar="KEY", help="the schedule; with list: only this one")
        add_options(parser, "--store", "--json")
        changes = parser.add_argument_group("with change")
        changes.add_argument("--line", help="the cron line, instead of --every")
        changes.add_argument("--every", type=duration_option, metavar="AGE", help="the period, instead of --line")
        changes.add_argument("--timezone", metavar="NAME", help="the time zone of the line")
        changes.add_argument("--catch-up", type=_span, metavar="AGE", help="how late a tick may still fire; 0: default")
        changes.add_argument("--jitter", type=_span, metavar="AGE", help="delay jobs by up to this; 0: not at all")
        changes.add_argument("--overlap", action=argparse.BooleanOptionalAction, help="whether jobs may overlap")
        changes.add_argument("--arguments", type=_arguments, metavar="JSON", help="arguments; those left out stay")

    def run(self, console: Console) -> None:
        """List, or change the schedule with this key of the store, or of no store. Raises CommandError."""
        action, key, store_id = console["action"], console["key"], console["store"]
        found = Schedule.objects.using(console.using).defer("payload").filter(**console.given("key", store_id="store"))
        given = console.given("line", "every", "timezone", "catch_up", "jitter", "overlap", "arguments")
        if (action == "change") != bool(given):
            raise CommandError("give change what to change, such as --line or --every, and no other action any of it")
        if action == "list":
            listed = list(found.order_by("next_at")[: _LISTED + 1])
            _list(console, listed[:_LISTED])
            if len(listed) > _LISTED:
                console.note(f"only the first {_LISTED} are listed; give a KEY to see any other")
            return
        if key is None:
            raise CommandError(f"name a schedule: salon_jobs schedules {action} KEY")
        row = found.filter(store_id=store_id).first()
        if row is None:
            of = "" if conf.store_model is None else " of this store" if store_id else " without a store"
            hint = "; for a schedule of a store, add --store" if conf.store_model is not None and not store_id else ""
            raise CommandError(f"no schedule{of} has the key {short_repr(key)}{hint}")
        aliases: dict[str, Any] = {"using": console.database, "look": console.using}
        if action == "run":
            with context_of(row.store_id):
                handle: JobHandle = _VERBS["run_now"].call([row.pk], row.pk, by=os_user(), **aliases)
            said = "" if handle.action == EnqueueAction.INSERTED else f" ({handle.action.value})"
            shown = {"schedule": key, "job_id": handle.id, "action": handle.action.value}
            console.result(shown, f"enqueued job {handle.id}{said}")
            return
        if action == "change":
            if "timezone" in given and "line" not in given and (row.every or "every" in given):
                raise CommandError("--timezone is that of a line, and this schedule has a period: add --line")
            named = registry.get_declaration(row.task).payload.named(row.payload)
            other_due: dict[str, Any] = {"line": None, "every": None} if given.keys() & {"line", "every"} else {}
            arguments = {**named, **given.pop("arguments", {})}
            timing = {**timing_of(row), **other_due, **given}
            saved: ScheduleHandle = _VERBS["change"].call([row.pk], row, arguments, **aliases, **timing)
            console.result({saved.action: key, "next_at": saved.next_at}, f"{saved.action}: schedule {key}")
            return
        verb = _VERBS[action]
        [result] = verb.apply([row.pk], by=os_user(), using=console.using)
        if not result.changed:
            raise CommandError(f"schedule {key!r} was not {verb.done}: {result.detail}")
        console.result({verb.done: key}, f"{verb.done}: schedule {key}")


def _span(text: str) -> timedelta:
    return timedelta(0) if text == "0" else duration_option(text)


def _arguments(text: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(given := json.loads(text), dict):
            return {**given}
    raise argparse.ArgumentTypeError('write a JSON object, such as {"number": 7}')


def _list(console: Console, schedules: list[Schedule]) -> None:
    asked = {"ids": [each.pk for each in schedules], "ticks": 1}
    last = {id_: tick for id_, *tick in rows_of("schedule_results", asked, using=console.using)}
    described: list[dict[str, Any]] = []
    rows: list[tuple[object, ...]] = [("key", "store", "due", "next", "last", "result")]
    for each in schedules:
        due = f"{each.line} {each.timezone}" if each.every is None else f"every {duration(each.every.total_seconds())}"
        last_tick, _, _, job_id, result = last.get(each.pk, (None, False, "", None, ""))
        is_paused = each.paused_at is not None
        next_shown = Text("paused", "yellow") if is_paused else each.next_at
        became = became_of(result) if last_tick else ""
        result_shown = Text(became, "red") if result.startswith("failed") else became
        rows.append((each.key, each.store_id, due, next_shown, last_tick or "never", result_shown))
        columns = {name: getattr(each, name) for name in ("id", "key", "store_id", "task", "next_at")}
        described.append(
            {**columns, "due": due, "paused": is_paused, "last_tick": last_tick, "job_id": job_id, "result": result}
        )
    console.listing(described, rows, "there is no schedule")
