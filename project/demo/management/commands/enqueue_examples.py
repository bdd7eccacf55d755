"""Command that enqueues and emits what an operator's pages can show: successes, failures, and what waits."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from project.demo.tasks import charge_card, export_sales
from salon_jobs import emit, tenant_context

_AMOUNTS: Final = (1_200, 3_400, 9_800, 15_000, 4_400, 72_000)


class Command(BaseCommand):
    """Command for the web role (``DATABASE_URL``)."""

    help = "Enqueue jobs that succeed, fail and wait, and emit invoices, of which one is too large for its stream."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--store", type=UUID, action="append", required=True, help="may be repeated")
        parser.add_argument("--invoices", metavar="RN", required=True, help="destination of the invoices")

    def handle(self, *args: Any, **options: Any) -> None:
        """Enqueue and emit, one transaction for each store."""
        for number, store_id in enumerate(options["store"]):
            with tenant_context(store_id), transaction.atomic():
                for sale, amount in enumerate(_AMOUNTS, start=number * 100 + 1):
                    charge_card.enqueue(store_id=store_id, sale=sale, amount=amount)
                export_sales.enqueue(store_id=store_id, month="2026-04")
                lines = 1_000 if number == 0 else 1
                emit(
                    options["invoices"],
                    aggregate_id=str(store_id),
                    event="invoice.issued",
                    payload={"lines": [{"sale": line, "amount": 1_200} for line in range(lines)]},
                )
