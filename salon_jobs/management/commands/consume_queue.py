"""Turn incoming messages into jobs: ``python manage.py consume_queue``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from salon_jobs.inbox.consumer import Consumers
from salon_jobs.management.arguments import add_service_arguments, configure_from, health_address
from salon_jobs.management.output import as_command_error
from salon_jobs.process.service import Service

_HEALTH_PORT = 8083


class Command(BaseCommand):
    """Command that consumes until SIGTERM or SIGINT, or until all sources are empty (``--burst``)."""

    help = "Turn each message of SALON_JOBS['CONSUMERS'] into one job. Connects as the worker role."

    # Checks of models query the database's version; this process must start, live and report while there is no
    # database.
    requires_system_checks = ("salon_jobs",)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("name", nargs="*", metavar="NAME", help="consumers of the settings; default all")
        parser.add_argument("--burst", action="store_true", help="run until all sources are empty, then exit with 0")
        add_service_arguments(parser, health_port=_HEALTH_PORT)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the consumers."""
        configure_from(options)
        with as_command_error():
            consumers = Consumers(options["name"], burst=options["burst"])
            Service(
                "consumer",
                lambda _presence: consumers,
                health_address=health_address(options, _HEALTH_PORT),
                burst=options["burst"],
            ).run()
