"""Command that confirms reservations of many stores in parallel, as the web would; some transactions roll back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections, transaction
from django.utils import timezone

from project.salon.models import Reservation
from project.salon.models.reservation import ReservationStatus
from project.salon.reservations import confirm
from salon_jobs import tenant_context

_AT_ONCE: Final = 4
_STAYS_TENTATIVE: Final = timedelta(minutes=30)


class Command(BaseCommand):
    """Command for the web role (``DATABASE_URL``). Skips reservations about to lapse or of deleted customers."""

    help = "Confirm tentative reservations, each in a transaction of its own; print how many, and how many rolled back."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--store", type=UUID, action="append", required=True, help="may be repeated")

    def handle(self, *args: Any, **options: Any) -> None:
        """Confirm each store's reservations in the order of their times."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            counts = list(threads.map(_confirm_all, options["store"]))
        self.stdout.write(f"{sum(count for count, _ in counts)} {sum(count for _, count in counts)}")


def _confirm_all(store_id: UUID) -> tuple[int, int]:
    """Return how many reservations were confirmed, and how many were rolled back after that."""
    chosen = Reservation.objects.filter(
        status=ReservationStatus.TENTATIVE,
        expires_at__gt=timezone.now() + _STAYS_TENTATIVE,
        customer__isnull=False,
        customer__deleted_at=None,
    )
    with tenant_context(store_id):
        ids = list(chosen.order_by("starts_at", "pk").values_list("pk", flat=True))
    changed_minds = 0
    for reservation_id in ids:
        with tenant_context(store_id):
            confirm(Reservation.objects.select_for_update().get(pk=reservation_id))
            if str(reservation_id)[-1] in "08":  # one in eight: the customer hangs up
                transaction.set_rollback(True)
                changed_minds += 1
    connections.close_all()
    return len(ids) - changed_minds, changed_minds
