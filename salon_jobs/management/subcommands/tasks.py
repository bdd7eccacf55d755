"""``salon_jobs tasks``."""

from __future__ import annotations

from dataclasses import asdict

from django.core.management.base import CommandParser

from salon_jobs.core.units import duration
from salon_jobs.dashboard.tasks import declared_tasks
from salon_jobs.management.arguments import add_options
from salon_jobs.management.output import Console
from salon_jobs.management.subcommands import Subcommand


class Tasks(Subcommand):
    """Subcommand that lists the declared tasks."""

    name = "tasks"
    help = "List the tasks that the installed apps declare, with their queue, attempts and timeout."
    needs_role = False

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        """List them, without the database."""
        listed = declared_tasks()
        rows: list[tuple[object, ...]] = [("task", "queue", "attempts", "timeout", "of a store", "declared")]
        for each in listed:
            timeout = None if each.timeout_s is None else duration(each.timeout_s)
            store = "yes" if each.is_store_task else None
            rows.append((each.task, each.queue, each.max_attempts, timeout, store, each.declared))
        # A narrow screen has no room for the paths.
        console.listing(list(map(asdict, listed)), rows, "no task is declared", only_wide=("declared",))
