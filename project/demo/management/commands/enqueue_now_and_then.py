"""Command that enqueues a job every second or two, so that the operator's pages have something to show."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandParser

from project.demo.tasks import charge_card, print_report, remind_customer, sync_till
from salon_jobs import tenant_context


class Command(BaseCommand):
    """Command for the web role (``DATABASE_URL``)."""

    help = "Enqueue jobs until it is stopped: most are quick, some long, some retried, some scheduled."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--store", type=UUID, action="append", required=True, help="may be repeated")

    def handle(self, *args: Any, **options: Any) -> None:
        """Enqueue one job after the other."""
        for number in count(1):
            store_id = random.choice(options["store"])
            with tenant_context(store_id):
                if number % 10 == 0:
                    print_report.enqueue(store_id=store_id, seconds=random.randint(10, 90))
                elif number % 10 == 5:
                    later = timedelta(seconds=random.randint(30, 1200))
                    remind_customer.using(run_in=later).enqueue(store_id=store_id, visit=number)
                elif number % 3 == 0:
                    sync_till.enqueue(store_id=store_id, number=number // 3)
                else:
                    charge_card.enqueue(store_id=store_id, sale=number, amount=random.randint(800, 40_000))
            time.sleep(random.uniform(0.5, 2))
