"""Command that enqueues a ping, to check that jobs are picked up."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from project.salon.tasks.smoke import ping


class Command(BaseCommand):
    """Command that enqueues one ``ping`` job. Connects as the web role (``DATABASE_URL``)."""

    help = "Enqueue one ping job and print its ID."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(str(ping.enqueue().id))
