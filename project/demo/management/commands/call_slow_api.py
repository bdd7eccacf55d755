"""Command that enqueues jobs which wait for a slow API, and shows how many wait at once until all have ended."""

from __future__ import annotations

import time
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from project.demo.slow_api import SlowApi, allow_sockets
from project.demo.tasks import ask_slow_api
from salon_jobs.conf import settings as conf
from salon_jobs.jobs import JobState
from salon_jobs.models import Job

_LOOK_EVERY_S: Final = 0.2
_CONNECTIONS: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


class Command(BaseCommand):
    """Command for the web role (``DATABASE_URL``); looks at the jobs as the operator (``OPERATOR_DATABASE_URL``)."""

    help = "Let jobs with an async handler wait for an API that answers after a second, until all have ended."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--jobs", type=int, default=2000, metavar="N", help="how many (default 2000)")
        parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="how long each answer takes")

    def handle(self, *args: Any, **options: Any) -> None:
        """Enqueue all in one transaction, watch them, and print the figures."""
        count: int = options["jobs"]
        columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), BarColumn(20))
        console = Console(highlight=False)
        held = 0
        allow_sockets()
        with (
            SlowApi(options["seconds"]) as api,
            Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console) as progress,
        ):
            bar = progress.add_task("enqueue", total=count)
            began = time.monotonic()
            ask_slow_api.enqueue_many([ask_slow_api.call(port=api.port)] * count)
            while left := _left():
                progress.update(bar, completed=count - left, description=f"{api.waiting:5,} wait for an answer")
                held = max(held, _connections())
                time.sleep(_LOOK_EVERY_S)
            took_s = time.monotonic() - began
            progress.update(bar, completed=count, description="all have ended")
        console.print(
            f"{count:,} jobs, {api.answered:,} answers after {options['seconds']:g} s each, in {took_s:.1f} s:"
            f" {count / took_s:,.0f} jobs a second.\nAt most {api.most_waiting:,} waited at once, each with a socket;"
            f" all processes together held {held:,} connections to the database.",
            soft_wrap=True,
        )


def _left() -> int:
    jobs = Job.objects.using(conf.reader_database)
    return jobs.filter(task=ask_slow_api.name, state__in=[JobState.QUEUED, JobState.RUNNING]).count()


def _connections() -> int:
    with connections[conf.reader_database].cursor() as cursor:
        cursor.execute(_CONNECTIONS)
        return int(cursor.fetchall()[0][0])
