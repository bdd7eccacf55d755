"""Pauses and resumes: ``salon_jobs pause`` and ``salon_jobs resume``."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.jobs import limits
from salon_jobs.management.subcommands.base import Subcommand


class Pause(Subcommand):
    """Starts no more jobs of one queue, task or store."""

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
        """Do it and say so."""
        self._do(options["queue"], options["task"], options["store"])
        done = {name: str(options[name]) for name in ("queue", "task", "store") if options[name] is not None}
        text = ", ".join(f"{name} {value}" for name, value in done.items())
        out.write(json.dumps({self._done: done}) if options["json"] else f"{self._done}: {text}")

    def _do(self, queue: str | None, task: str | None, store_id: UUID | None) -> None:
        limits.pause(queue=queue, task=task, store_id=store_id, using=conf.reader_database)


class Resume(Pause):
    """Starts the jobs of a paused queue, task or store again."""

    name = "resume"
    help = "Start the jobs of a paused queue, task or store again; its limits stay."
    _done = "resumed"

    def _do(self, queue: str | None, task: str | None, store_id: UUID | None) -> None:
        limits.resume(queue=queue, task=task, store_id=store_id, using=conf.reader_database)
