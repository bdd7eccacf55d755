"""Pauses and resumes destinations: ``salon_jobs messages pause`` and ``salon_jobs messages resume``."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.outbox.pause import pause_destination, resume_destination


class PauseDestination(Subcommand):
    """Sends nothing to one destination."""

    name = "pause"
    help = "Send nothing to a destination; messages are still written, and wait. Relays follow within a second."
    _done = "paused"
    _do = staticmethod(pause_destination)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("aggregate_type", help="the destination: an ARN or RN")
        parser.add_argument("--json", action="store_true", help="write what was done as JSON")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Do it and say so. Raises MessageInvalid."""
        name = options["aggregate_type"]
        self._do(name, using=conf.reader_database)
        out.write(json.dumps({self._done: name}) if options["json"] else f"{self._done}: {name}")


class ResumeDestination(PauseDestination):
    """Sends to a paused destination again."""

    name = "resume"
    help = "Send to a paused destination again what waits, in order."
    _done = "resumed"
    _do = staticmethod(resume_destination)
