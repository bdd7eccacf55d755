"""Runs jobs: ``python manage.py runworker``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from salon_jobs.conf import settings as conf
from salon_jobs.jobs.worker import WorkerOptions
from salon_jobs.jobs.worker_loop import WorkerLoop
from salon_jobs.management.arguments import add_service_arguments, configure_from, health_address, positive
from salon_jobs.management.refusals import told_in_one_line
from salon_jobs.runtime.service import Service
from salon_jobs.schedule.scheduler import Scheduler

_HEALTH_PORT = 8080


class Command(BaseCommand):
    """Runs one worker process until SIGTERM or SIGINT; a second signal forces the end."""

    help = "Run jobs until SIGTERM or SIGINT (a second one forces the end). Connects as the worker role."

    # Checks of models ask the database for its version; this process must start, live and tell, while there is none.
    requires_system_checks = ("salon_jobs",)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--queue", action="append", metavar="NAME", help="serve this queue only; repeatable")
        parser.add_argument("--concurrency", type=positive, default=None, metavar="N", help="jobs run at once")
        parser.add_argument("--burst", action="store_true", help="run until nothing is due, then exit with 0")
        parser.add_argument("--with-scheduler", action="store_true", help="fire cron entries from this process too")
        add_service_arguments(parser, health_port=_HEALTH_PORT)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        configure_from(options)
        chosen = WorkerOptions(
            concurrency=options["concurrency"] or conf.concurrency, queues=options["queue"], burst=options["burst"]
        )

        def make_loop(process_id: int) -> WorkerLoop:
            return WorkerLoop(process_id, chosen, beside=Scheduler() if options["with_scheduler"] else None)

        with told_in_one_line():
            Service(
                "worker", make_loop, health_address=health_address(options, _HEALTH_PORT),
                concurrency=chosen.concurrency, queues=chosen.queues, burst=chosen.burst,
            ).run()  # fmt: skip
