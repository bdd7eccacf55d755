"""Command that uploads one file for each of many stores in parallel, as the web would; some transactions roll back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import UUID

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections, transaction

from project.salon.models import Sale
from project.salon.uploads import upload
from salon_jobs import tenant_context

_AT_ONCE: Final = 4


class Command(BaseCommand):
    """Command for the web role (``DATABASE_URL``). A file holds the amounts of the store's sales."""

    help = "Upload a file of each store, in a transaction of its own; print how many, and how many rolled back."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--store", type=UUID, action="append", required=True, help="may be repeated")

    def handle(self, *args: Any, **options: Any) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            kept = list(threads.map(_upload, options["store"]))
        self.stdout.write(f"{sum(kept)} {len(kept) - sum(kept)}")


def _upload(store_id: UUID) -> bool:
    """Upload one store's file; return whether it was kept."""
    try:
        with tenant_context(store_id):
            amounts = Sale.objects.order_by("pk").values_list("amount", flat=True)
            upload(store_id, name="sales.txt", content="\n".join(map(str, amounts)))
            gives_up = str(store_id)[-1] in "08"  # one in eight: the connection breaks
            if gives_up:
                transaction.set_rollback(True)
    finally:
        connections.close_all()
    return not gives_up
