"""``salon_jobs schedules``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser

from salon_jobs.core.terminal import Painted
from salon_jobs.core.units import duration
from salon_jobs.db.statements import rows as rows_of
from salon_jobs.management.arguments import add_options, os_user
from salon_jobs.management.output import Console
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.models import Schedule
from salon_jobs.schedules.stored import run_schedule
from salon_jobs.tenancy.context import tenant_context
from salon_jobs.verbs import verbs_of

_LISTED: Final = 200


class ChangeSchedules(Subcommand):
    """Subcommand that lists the schedules that are rows, and pauses, resumes, deletes or runs one of them."""

    name = "schedules"
    help = "List schedules by their next ticks, or pause, resume or delete one, or run it now."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = ("list", "pause", "resume", "delete", "run")
        parser.add_argument("action", nargs="?", choices=actions, default="list", help="default list")
        parser.add_argument("key", nargs="?", metavar="KEY", help="the schedule; with list: only this one")
        add_options(parser, "--store", "--json")

    def run(self, console: Console) -> None:
        """List, or do it to the schedule with this key of the store, or of none. Raises CommandError."""
        action, key, store_id = console["action"], console["key"], console["store"]
        found = Schedule.objects.using(console.using).defer("payload").filter(**console.given("key", store_id="store"))
        if action == "list":
            _list(console, list(found.order_by("next_at")[:_LISTED]))
            return
        if key is None:
            raise CommandError(f"name a schedule: salon_jobs schedules {action} KEY")
        row = found.filter(store_id=store_id).first()
        if row is None:
            raise CommandError(f"no schedule of {'no store' if store_id is None else 'this store'} has the key {key!r}")
        if action == "run":
            with nullcontext() if row.store_id is None else tenant_context(row.store_id):
                handle = run_schedule(row.pk, by=os_user())
            console.result({"schedule": key, "job_id": handle.id}, f"enqueued job {handle.id}")
            return
        verb = verbs_of(Schedule)[action]
        [result] = verb.apply([row.pk], by=os_user(), using=console.using)
        if not result.changed:
            raise CommandError(f"schedule {key!r} was not {verb.done}: {result.detail}")
        console.result({verb.done: key}, f"{verb.done}: schedule {key}")


def _list(console: Console, schedules: list[Schedule]) -> None:
    asked = {"ids": [each.pk for each in schedules], "ticks": 1}
    last = {id_: tick for id_, *tick in rows_of("schedule_results", asked, using=console.using)}
    described: list[dict[str, Any]] = []
    rows: list[tuple[object, ...]] = [("key", "store", "due", "next", "last", "result")]
    for each in schedules:
        due = f"{each.line} {each.timezone}" if each.every is None else f"every {duration(each.every.total_seconds())}"
        last_tick, _, _, job_id, result = last.get(each.pk, (None, False, "", None, ""))
        is_paused = each.paused_at is not None
        rows.append(
            (
                each.key,
                each.store_id,
                due,
                Painted("paused", "yellow") if is_paused else each.next_at,
                last_tick or "never",
                Painted(result, "red") if result.startswith("failed") else result,
            )
        )
        described.append(
            {
                "id": each.pk,
                "key": each.key,
                "store_id": each.store_id,
                "task": each.task,
                "due": due,
                "next_at": each.next_at,
                "paused": is_paused,
                "last_tick": last_tick,
                "job_id": job_id,
                "result": result,
            }
        )
    console.listing(described, rows, "there is no schedule")
