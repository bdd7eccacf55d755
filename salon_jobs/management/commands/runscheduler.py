"""Fire cron entries: ``python manage.py runscheduler``."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from salon_jobs.management.arguments import add_service_arguments, configure_from, health_address
from salon_jobs.management.output import as_command_error
from salon_jobs.process.preflight import check_worker
from salon_jobs.process.service import Service
from salon_jobs.schedule.scheduler import Scheduler


def instant(text: str) -> datetime:
    """Parse an aware ISO 8601 instant, for argparse."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no ISO 8601 instant; write 2026-05-05T18:00:00Z") from None
    if value.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone; write 2026-05-05T18:00:00Z")
    return value


_HEALTH_PORT = 8081


class Command(BaseCommand):
    """Command that runs one scheduler until SIGTERM or SIGINT, or for one poll (``--burst``)."""

    help = "Fire cron entries, each tick once for any number of schedulers. Connects as the worker role."

    # Checks of models query the database's version; this process must start, live and report while there is no
    # database.
    requires_system_checks = ("salon_jobs",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--burst", action="store_true", help="fire what is due now, then exit with 0")
        parser.add_argument(
            "--at", type=instant, metavar="INSTANT", help="with --burst: fire the ticks of this instant alone"
        )
        add_service_arguments(parser, health_port=_HEALTH_PORT)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["at"] is not None and not options["burst"]:
            raise CommandError("--at goes with --burst")
        configure_from(options)
        with as_command_error():
            if options["burst"]:
                self._burst(options["at"])
            else:
                Service(
                    "scheduler", lambda _heartbeat: Scheduler(), health_address=health_address(options, _HEALTH_PORT)
                ).run()

    def _burst(self, at: datetime | None) -> None:
        check_worker()
        scheduler = Scheduler()
        if at is None:
            scheduler.poll()
        else:
            fired = scheduler.run_at(at)
            self.stderr.write(f"{fired} entries fired for {at.isoformat()}")
