"""``salon_jobs limit``, ``pause`` and ``resume``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.jobs import limits
from salon_jobs.jobs.limits import ListedLimit, list_limits
from salon_jobs.management.output import table
from salon_jobs.management.subcommands.base import Subcommand

_HEAD = ("rule", "paused", "at once", "a second", "declared")


class Limit(Subcommand):
    """Subcommand that sets the limits of one queue, task, store or key; without options it lists all limits."""

    name = "limit"
    help = (
        "Limit how many jobs of a queue, a task, a store or a key run at once in all processes, and how many start a"
        " second; what is not said stays. Without any of these list the rules in force."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        one = parser.add_mutually_exclusive_group()
        one.add_argument("--queue", metavar="NAME", help="a queue")
        one.add_argument("--task", metavar="NAME", help="a task")
        one.add_argument("--store", type=UUID, metavar="ID", help="a store")
        parser.add_argument("--key", help="with --task: its jobs that have this concurrency key")
        most = parser.add_mutually_exclusive_group()
        most.add_argument("--max-concurrency", type=int, metavar="N", help="so many at once, whatever is declared")
        most.add_argument("--lift", action="store_true", help="any number at once, whatever is declared")
        most.add_argument("--as-declared", action="store_true", help="so many at once as is declared")
        rate = parser.add_mutually_exclusive_group()
        rate.add_argument("--rate", type=float, metavar="R", help="so many start a second")
        rate.add_argument("--no-rate", action="store_true", help="any number start a second")
        parser.add_argument("--json", action="store_true", help="write a list of objects, one for each rule")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Set the limit, if one is named, and write the current limits. Raises CommandError, OptionInvalid."""
        named = any(options[name] is not None for name in ("queue", "task", "store", "key"))
        said = _said(options)
        if named and not said:
            raise CommandError("say what shall hold: --max-concurrency, --lift, --as-declared, --rate or --no-rate")
        if said and not named:
            raise CommandError("name what shall be limited: --queue, --task (with --key) or --store")
        if said:
            limits.limit(
                queue=options["queue"],
                task=options["task"],
                store_id=options["store"],
                key=options["key"],
                using=conf.reader_database,
                **said,
            )
        rules = list_limits(using=conf.reader_database)
        if options["json"]:
            out.write(json.dumps(list(map(asdict, rules)), indent=2))
        elif rules:
            out.write(table([_HEAD, *map(_cells, rules)]))
        else:
            err.write("there are no rules, and nothing is declared")


def _said(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``limit``: omitted options keep their value."""
    said = {name: options[name] for name in ("max_concurrency", "rate") if options[name] is not None}
    if options["as_declared"]:
        said["max_concurrency"] = None
    if options["no_rate"]:
        said["rate"] = None
    if options["lift"]:
        said["lift"] = True
    return said


def _cells(rule: ListedLimit) -> tuple[object, ...]:
    numbers = (None if n is None else f"{n:,}" for n in (rule.max_concurrency, rule.rate, rule.declared))
    return (f"{rule.kind} {rule.name}", "yes" if rule.paused else None, *numbers)


class Pause(Subcommand):
    """Subcommand that stops starting the jobs of one queue, task or store."""

    name = "pause"
    help = "Start no more jobs of a queue, a task or a store; what runs goes on. Workers follow within a second."
    _done = "paused"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        one = parser.add_mutually_exclusive_group(required=True)
        one.add_argument("--queue", metavar="NAME", help="a queue")
        one.add_argument("--task", metavar="NAME", help="a task")
        one.add_argument("--store", type=UUID, metavar="ID", help="a store")
        parser.add_argument("--json", action="store_true", help="write what was done as JSON")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Do it and report it."""
        self._do(options["queue"], options["task"], options["store"])
        done = {name: str(options[name]) for name in ("queue", "task", "store") if options[name] is not None}
        text = ", ".join(f"{name} {value}" for name, value in done.items())
        out.write(json.dumps({self._done: done}) if options["json"] else f"{self._done}: {text}")

    def _do(self, queue: str | None, task: str | None, store_id: UUID | None) -> None:
        limits.pause(queue=queue, task=task, store_id=store_id, using=conf.reader_database)


class Resume(Pause):
    """Subcommand that resumes a paused queue, task or store."""

    name = "resume"
    help = "Start the jobs of a paused queue, task or store again; its limits stay."
    _done = "resumed"

    def _do(self, queue: str | None, task: str | None, store_id: UUID | None) -> None:
        limits.resume(queue=queue, task=task, store_id=store_id, using=conf.reader_database)
