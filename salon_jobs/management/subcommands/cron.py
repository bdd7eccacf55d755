"""``salon_jobs cron``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.text import Text

from salon_jobs.core.records import EnqueueAction
from salon_jobs.dashboard.processes import cron
from salon_jobs.db import clock
from salon_jobs.jobs.results import JobHandle
from salon_jobs.management.arguments import add_options, os_user
from salon_jobs.management.output import Console, when
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.models import CronEntryState
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.verbs import verbs_of
from salon_jobs.words import became_of


class Cron(Subcommand):
    """Subcommand that lists the cron entries, or runs one of them now."""

    name = "cron"
    help = "List cron entries with their ticks; run one now, pause or resume it, override its line or restore it."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = ("list", "run", "pause", "resume", "override", "restore")
        parser.add_argument("action", nargs="?", choices=actions, default="list", help="default list")
        parser.add_argument("entry", nargs="?", metavar="NAME", help="the name of an entry, but for list")
        parser.add_argument("line", nargs="?", metavar="LINE", help="for override: the line instead of the one in code")
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        """List, or enqueue the job through ``DATABASE``. Raises CommandError, CronInvalid."""
        name = console["entry"]
        if console["action"] == "run":
            if name is None:
                raise CommandError("name an entry: salon_jobs cron run NAME")
            run_now = verbs_of(CronEntryState)["run_now"]
            handle: JobHandle = run_now.call([name], name, using=console.database, look=console.using)
            said = "" if handle.action == EnqueueAction.INSERTED else f" ({handle.action.value})"
            shown = {"entry": name, "job_id": handle.id, "action": handle.action.value}
            console.result(shown, f"enqueued job {handle.id}{said}")
            return
        if (verb := verbs_of(CronEntryState).get(console["action"])) is not None:
            takes = {taken: console[taken] for taken in verb.takes}
            if name is None or bool(console["line"]) != bool(takes):
                usage = " ".join([verb.name, "NAME", *map(str.upper, takes)])
                raise CommandError(f"name an entry: salon_jobs cron {usage}")
            [done] = verb.apply([name], by=os_user(), using=console.using, **takes)
            if not done.changed:
                raise CommandError(f"cron entry {name!r} was not {verb.done}: {done.detail}")
            console.result({verb.done: name}, f"{verb.done}: cron entry {name}")
            return
        if name is not None:
            raise CommandError("cron list takes no name")
        declared = {entry.name: entry for entry in cron_entries.all()}
        described: list[dict[str, Any]] = []
        rows: list[tuple[object, ...]] = [("entry", "schedule", "zone", "next", "last", "result", "why")]
        for each in cron(using=console.using):
            entry = declared.get(each.name)
            described.append({**asdict(each), "task": entry and entry.task_name})
            result = Text(each.result.partition(":")[0], "red") if each.failed else became_of(each.result)
            line = each.schedule or "not declared here"
            # A narrow screen has no column for results: notable ones are below their rows.
            is_usual = each.last_tick is None or each.result.startswith(("queued", "running", "succeeded"))
            noted = became_of(each.result) if each.failed or (console.is_narrow and not is_usual) else ""
            is_late = each.is_late(clock.now(console.using))
            next_at = Text(f"{when(each.next_at)}, late", "red") if is_late and each.next_at else each.next_at
            paused = "paused" if each.paused else ""
            why = "; ".join(filter(None, (paused, each.override and f"{line} {each.override}", each.invalid, noted)))
            rows.append((each.name, line, each.timezone, next_at, each.last_tick or "never", result, why))
        console.listing(described, rows, "no cron entry is declared", only_wide=("result",))
