"""Relay messages: ``python manage.py relay_outbox``."""

from __future__ import annotations

from typing import Any

from salon_jobs.conf import settings as conf
from salon_jobs.management.service import ServiceCommand
from salon_jobs.outbox.relay import Relay
from salon_jobs.process.heartbeat import Heartbeat


class Command(ServiceCommand):
    """Command that runs one relay."""

    help = "Publish the messages of committed transactions, in order. Any number can run. Connects as the worker role."
    alias = "relay"
    health_port = 8082
    burst_help = "relay until nothing is due"

    def serve(self, options: dict[str, Any]) -> None:
        conf.outbox.require_producer()

        def make_loop(heartbeat: Heartbeat) -> Relay:
            return Relay(lambda: heartbeat.process_id, using=heartbeat.using, burst=options["burst"])

        self.run_service("relay", make_loop, options, facts={"producer": str(conf.outbox.producer)})
