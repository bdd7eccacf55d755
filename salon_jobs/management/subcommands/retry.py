"""Queues ended jobs again: ``salon_jobs retry``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from salon_jobs.core.records import JobState
from salon_jobs.jobs.operate import retry_jobs
from salon_jobs.management.arguments import instant_ahead
from salon_jobs.management.subcommands.on_jobs import OnJobs


class Retry(OnJobs):
    """Queues failed and cancelled jobs again by id, or all that failed of a task, a store or a queue."""

    name = "retry"
    help = "Queue failed and cancelled jobs again, due now or later; those whose attempts are spent get one more."
    states = (JobState.FAILED,)
    done = "queued again"
    not_done = "nothing was queued"
    operate = staticmethod(retry_jobs)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument(
            "--at", type=instant_ahead, metavar="TIME", help="due then: in 12h, or at an instant in ISO 8601; else now"
        )

    def values(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return when they shall be due."""
        return {"at": options["at"]}
