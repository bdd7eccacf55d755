"""Run jobs: ``python manage.py runworker``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from salon_jobs.conf import settings as conf
from salon_jobs.inbox.consumer import Consumers
from salon_jobs.management.arguments import (
    add_service_arguments,
    configure_from,
    health_address,
    positive,
    unknown_names,
)
from salon_jobs.management.output import as_command_error
from salon_jobs.outbox.relay import EmbeddedRelay
from salon_jobs.process.heartbeat import Heartbeat
from salon_jobs.process.service import ServedLoop, Service
from salon_jobs.schedule.scheduler import Scheduler
from salon_jobs.worker.child import run_child
from salon_jobs.worker.child_process import same_command
from salon_jobs.worker.supervisor import Supervisor
from salon_jobs.worker.worker import WorkerOptions

_HEALTH_PORT = 8080


class Command(BaseCommand):
    """Command that runs one supervisor and its workers until SIGTERM or SIGINT; a second signal forces the end."""

    help = "Run jobs until SIGTERM or SIGINT (a second one forces the end). Connects as the worker role."

    # Checks of models query the database's version; this process must start, live and report while there is no
    # database.
    requires_system_checks = ("salon_jobs",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", action="append", metavar="NAME", help="serve this queue only; repeatable")
        parser.add_argument(
            "--concurrency", type=positive, default=None, metavar="N", help="jobs run at once by each process"
        )
        parser.add_argument("--processes", type=positive, default=1, metavar="N", help="processes that run jobs")
        parser.add_argument("--burst", action="store_true", help="run until nothing is due, then exit with 0")
        parser.add_argument("--with-scheduler", action="store_true", help="fire cron entries too")
        parser.add_argument("--with-relay", action="store_true", help="publish messages too")
        parser.add_argument("--with-consumer", action="store_true", help="turn messages into jobs too")
        parser.add_argument("--child", help=argparse.SUPPRESS)
        add_service_arguments(parser, health_port=_HEALTH_PORT)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the supervisor, or one of the processes that a supervisor starts with ``--child``."""
        configure_from(options)
        if options["child"]:
            run_child(options["child"])
        worker_options = WorkerOptions(
            concurrency=options["concurrency"] or conf.concurrency, queues=options["queue"], burst=options["burst"]
        )

        def make_loop(heartbeat: Heartbeat) -> Supervisor:
            embedded: list[ServedLoop] = []
            if options["with_scheduler"]:
                embedded.append(Scheduler())
            if options["with_relay"]:
                embedded.append(EmbeddedRelay(heartbeat))
            if options["with_consumer"]:
                embedded.append(Consumers())
            command, processes = self._child_command(options), options["processes"]
            return Supervisor(heartbeat, command, worker_options, processes=processes, embedded=embedded)

        for note in unknown_names({"queue": options["queue"]}):
            self.stderr.write(note)
        with as_command_error():
            if options["with_relay"]:
                conf.outbox.require_producer()
            Service(
                "supervisor",
                make_loop,
                health_address=health_address(options, _HEALTH_PORT),
                concurrency=0,
                queues=worker_options.queues,
                burst=worker_options.burst,
            ).run()

    def _child_command(self, options: dict[str, Any]) -> list[str]:
        if getattr(self, "_called_from_command_line", False):
            return same_command()
        # Started by call_command: the process's command line belongs to another program.
        log_options = {"--log-format": options["log_format"], "--log-level": options["log_level"]}
        words = [word for name, value in log_options.items() if value is not None for word in (name, value)]
        return [sys.executable, "-m", "django", "runworker", *words]
