"""Fire cron entries: ``python manage.py runscheduler``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from salon_jobs.core.units import with_noun
from salon_jobs.management.arguments import iso_instant
from salon_jobs.management.service import ServiceCommand
from salon_jobs.process.preflight import check_worker
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.schedules.scheduler import Scheduler


class Command(ServiceCommand):
    """Command that runs one scheduler, or one poll of it (``--burst``)."""

    help = "Fire cron entries, each tick once however many schedulers run. Connects as the worker role."
    alias = "scheduler"
    health_port = 8081
    burst_help = "fire what is due now"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--at", type=iso_instant, metavar="INSTANT", help="with --burst: fire only the ticks of this instant"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the scheduler; a restart by the reloader would not mend its options."""
        if options["at"] is not None and not options["burst"]:
            raise CommandError("--at goes with --burst")
        super().handle(*args, **options)

    def serve(self, options: dict[str, Any]) -> None:
        at: datetime | None = options["at"]
        if not options["burst"]:
            facts = {"cron entries": f"{len(cron_entries.all()):,}"}
            self.run_service("scheduler", lambda heartbeat: Scheduler(using=heartbeat.using), options, facts=facts)
            return
        scheduler = Scheduler(using=self.using)
        check_worker(scheduler.using)
        if at is None:
            while not scheduler.poll():  # of many due schedules, a round takes a part
                pass
        else:
            fired = with_noun(scheduler.run_at(at), "entry", "entries")
            self.stderr.write(f"{fired} fired for {at.isoformat()}")
