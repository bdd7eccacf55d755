"""Turn incoming messages into jobs: ``python manage.py consume_queue``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from salon_jobs.conf import settings as conf
from salon_jobs.inbox.consumer import Consumers
from salon_jobs.management.service import ServiceCommand


class Command(ServiceCommand):
    """Command that runs the consumers."""

    help = "Turn each message of SALON_JOBS['CONSUMERS'] into one job. Connects as the worker role."
    alias = "consumer"
    health_port = 8083
    burst_help = "run until all sources are empty"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="*", metavar="NAME", help="names of consumers in the settings; default all")
        super().add_arguments(parser)

    def serve(self, options: dict[str, Any]) -> None:
        consumers = Consumers(options["name"], using=self.using, burst=options["burst"])
        facts = {"consumers": ", ".join(options["name"] or conf.consumers)}
        self.run_service("consumer", lambda _heartbeat: consumers, options, facts=facts)
