"""Enqueues a ping, to see whether jobs are picked up."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from project.salon.tasks.smoke import ping


class Command(BaseCommand):
    """Enqueues one ``ping`` job; connects as the web role (``DATABASE_URL``)."""

    help = "Enqueue one ping job and print its id."

    def handle(self, *args: Any, **options: Any) -> None:
        """Enqueue and print the id."""
        self.stdout.write(str(ping.enqueue().id))
