"""``salon_jobs cron``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import EnqueueAction
from salon_jobs.core.terminal import Painted, Screen
from salon_jobs.dashboard.processes import CronAtWork, cron
from salon_jobs.management.arguments import add_options
from salon_jobs.management.output import write_table
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.schedule.entries import CronEntry, cron_entries
from salon_jobs.schedule.scheduler import run_cron_entry

_HEAD = ("entry", "schedule", "zone", "next", "last")


class Cron(Subcommand):
    """Subcommand that lists the cron entries, or runs one of them now."""

    name = "cron"
    help = "List cron entries with their next and last ticks, or run one now, regardless of its schedule."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", nargs="?", choices=("list", "run"), default="list", help="default list")
        parser.add_argument("entry", nargs="?", metavar="NAME", help="with run: the name of an entry")
        add_options(parser, "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """List, or enqueue the job through ``DATABASE``. Raises CommandError, CronInvalid."""
        if options["action"] == "list":
            if options["entry"] is not None:
                raise CommandError("cron list takes no name")
            self._list(options, out, err)
        elif options["entry"] is None:
            raise CommandError("name an entry: salon_jobs cron run NAME")
        else:
            handle = run_cron_entry(options["entry"])
            shown = {"entry": options["entry"], "job_id": handle.id, "action": handle.action.value}
            said = "" if handle.action == EnqueueAction.INSERTED else f" ({handle.action.value})"
            out.write(json.dumps(shown) if options["json"] else f"enqueued job {handle.id}{said}")

    def _list(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        declared = {entry.name: entry for entry in cron_entries.all()}
        entries = cron(using=conf.reader_database)
        if options["json"]:
            out.write(
                json.dumps([_described(each, declared.get(each.name)) for each in entries], indent=2, default=str)
            )
        elif entries:
            screen = Screen.of(out, options)
            rows = [_cells(each, declared.get(each.name)) for each in entries]
            head = (*_HEAD, *(() if screen.is_narrow else ("result",)))
            details = [each.result if each.failed or _is_notable(each, screen) else "" for each in entries]
            write_table([head, *(row[: len(head)] for row in rows)], details, screen, out, detail="error")
        else:
            err.write("no cron entry is declared")


def _described(row: CronAtWork, entry: CronEntry | None) -> dict[str, Any]:
    known = {
        "task": entry and entry.task_name,
        "schedule": entry and entry.expression.line,
        "timezone": entry and entry.expression.timezone,
    }
    return {**asdict(row), **known}


def _is_notable(row: CronAtWork, screen: Screen) -> bool:
    """Return whether the result goes below its row: a narrow screen has no column for it."""
    return (
        screen.is_narrow and row.last_tick is not None and not row.result.startswith(("queued", "running", "succeeded"))
    )


def _cells(row: CronAtWork, entry: CronEntry | None) -> tuple[object, ...]:
    where = ("not declared here", None) if entry is None else (entry.expression.line, entry.expression.timezone)
    result = Painted("failed", "red") if row.failed else row.result
    return (row.name, *where, row.next_at, row.last_tick or "never", result)
