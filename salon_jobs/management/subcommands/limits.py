"""``salon_jobs limit``, ``pause`` and ``resume``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, ClassVar
from uuid import UUID

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import JobState
from salon_jobs.core.terminal import Painted, Screen
from salon_jobs.dashboard.labels import pause_of, store_names
from salon_jobs.jobs import limits
from salon_jobs.jobs.limits import ListedLimit, list_limits
from salon_jobs.management.arguments import add_options, os_user, unknown_names
from salon_jobs.management.output import printable, write_table
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.models import Job

_HEAD = ("limit", "paused", "at once", "per second", "declared")


class SetLimits(Subcommand):
    """Subcommand that sets the limits of one queue, task, store or key; without options it lists all limits."""

    name = "limit"
    help = (
        "Limit how many jobs of a queue, task, store or key run at once in all processes, and how many start per "
        "second. Options you omit keep their value. Without options, list the current limits."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser.add_mutually_exclusive_group(), "--queue", "--task", "--store")
        parser.add_argument("--key", help="with --task: its jobs that have this concurrency key")
        most = parser.add_mutually_exclusive_group()
        most.add_argument(
            "--max-concurrency", type=int, metavar="N", help="at most this many at once, whatever is declared"
        )
        most.add_argument("--lift", action="store_true", help="remove the concurrency limit, even one declared in code")
        most.add_argument("--as-declared", action="store_true", help="restore the limit declared in code")
        rate = parser.add_mutually_exclusive_group()
        rate.add_argument("--rate", type=float, metavar="R", help="at most this many start per second")
        rate.add_argument("--no-rate", action="store_true", help="any number start per second")
        add_options(parser, "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Set the limit, if one is named, and write the current limits. Raises CommandError, OptionInvalid."""
        has_scope = any(options[name] is not None for name in ("queue", "task", "store", "key"))
        values = _values(options)
        if has_scope and not values:
            raise CommandError("nothing to set: pass --max-concurrency, --lift, --as-declared, --rate or --no-rate")
        if values and not has_scope:
            raise CommandError("nothing to limit: pass --queue, --task (with --key) or --store")
        if values:
            scope = {"queue": options["queue"], "task": options["task"], "store_id": options["store"]}
            limits.limit(**scope, key=options["key"], using=conf.reader_database, **values)
        listed = list_limits(using=conf.reader_database)
        if options["json"]:
            out.write(json.dumps(list(map(asdict, listed)), indent=2, default=str))
        elif listed:
            rows = [_HEAD, *map(_cells, listed)]
            write_table(rows, list(map(_detail, listed)), Screen.of(out, options), out, detail="why")
        else:
            err.write("no limit is set or declared")


def _values(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``limit``: omitted options keep their value."""
    values = {name: options[name] for name in ("max_concurrency", "rate") if options[name] is not None}
    if options["as_declared"]:
        values["max_concurrency"] = None
    if options["no_rate"]:
        values["rate"] = None
    return values | ({"lift": True} if options["lift"] else {})


def _cells(limit: ListedLimit) -> tuple[object, ...]:
    numbers = (None if n is None else f"{n:,}" for n in (limit.max_concurrency, limit.rate, limit.declared))
    return (f"{limit.kind} {limit.name}", Painted("yes", "yellow") if limit.paused else None, *numbers)


def _detail(limit: ListedLimit) -> str:
    name = ""
    if limit.kind == "store" and limit.name != "*":
        name = store_names({UUID(limit.name)})[UUID(limit.name)]
    why = pause_of(limit) if limit.paused and (limit.paused_by or limit.paused_at) else ""
    return "; ".join(part for part in (name if name != limit.name else "", why) if part)


class Pause(Subcommand):
    """Subcommand that stops starting the jobs of one queue, task or store."""

    name = "pause"
    help = "Stop starting the jobs of a queue, task or store; claimed jobs continue. Workers follow within a second."
    done: ClassVar[str] = "paused"

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser.add_mutually_exclusive_group(required=True), "--queue", "--task", "--store")
        add_options(parser, "--yes", "--json")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Do it and report it. Raises CommandError for a name that no task and no waiting job has: perhaps a typo."""
        if not options.get("yes", True) and list(unknown_names(options)) and not _has_jobs(options):
            [(kind, name)] = [(kind, options[kind]) for kind in ("queue", "task") if options[kind] is not None]
            raise CommandError(f"Unknown {kind} {name!r}; nothing was {self.done}. Pass --yes to pause it anyway.")
        self.change(queue=options["queue"], task=options["task"], store_id=options["store"])
        scope = {name: str(options[name]) for name in ("queue", "task", "store") if options[name] is not None}
        text = ", ".join(f"{name} {value}" for name, value in scope.items())
        out.write(json.dumps({self.done: scope}) if options["json"] else printable(f"{self.done}: {text}"))

    def change(self, **scope: Any) -> None:
        """Pause the scope in the name of the operating system's user."""
        limits.pause(**scope, by=os_user(), using=conf.reader_database)


def _has_jobs(options: dict[str, Any]) -> bool:
    """Return whether jobs of this queue or task wait."""
    criteria = {name: options[name] for name in ("queue", "task") if options[name] is not None}
    return Job.objects.using(conf.reader_database).filter(state=JobState.QUEUED, **criteria).exists()


class Resume(Pause):
    """Subcommand that resumes a paused queue, task or store."""

    name = "resume"
    help = "Start the jobs of a paused queue, task or store again; its limits stay."
    done = "resumed"

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser.add_mutually_exclusive_group(required=True), "--queue", "--task", "--store")
        add_options(parser, "--json")

    def change(self, **scope: Any) -> None:
        limits.resume(**scope, using=conf.reader_database)
