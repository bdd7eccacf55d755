"""Relay messages: ``python manage.py relay_outbox``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from salon_jobs.conf import settings as conf
from salon_jobs.management.arguments import add_service_arguments, configure_from, health_address
from salon_jobs.management.output import as_command_error
from salon_jobs.outbox.relay import Relay
from salon_jobs.process.heartbeat import Heartbeat
from salon_jobs.process.service import Service

_HEALTH_PORT = 8082


class Command(BaseCommand):
    """Command that runs one relay until SIGTERM or SIGINT; a second signal forces the end."""

    help = "Publish the messages of committed transactions, in order; any number at once. Connects as the worker role."

    # Checks of models query the database's version; this process must start, live and report while there is no
    # database.
    requires_system_checks = ("salon_jobs",)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--burst", action="store_true", help="relay until nothing is due, then exit with 0")
        add_service_arguments(parser, health_port=_HEALTH_PORT)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the relay."""
        configure_from(options)

        def make_loop(presence: Heartbeat) -> Relay:
            return Relay(lambda: presence.process_id, burst=options["burst"])

        with as_command_error():
            conf.outbox.require_producer()
            Service(
                "relay", make_loop, health_address=health_address(options, _HEALTH_PORT), burst=options["burst"]
            ).run()
