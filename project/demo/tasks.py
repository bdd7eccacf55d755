"""Tasks for returning messages, and for what the demo shows. The salon's own twelve tasks are in the salon app."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from project.demo.slow_api import ask
from project.salon.business_day import JST
from project.salon.models import CustomerNote, ParseTask, Reservation, SourceFile
from project.salon.models.source_file import ParseStatus
from salon_jobs import current_job, store_task, task, tenant_context


@store_task(name="record-confirmation")
def record_confirmation(store_id: UUID, reservation_id: UUID, starts_at: datetime) -> None:
    """Add a note to the customer that a reservation was confirmed. Idempotent: the note has the reservation's ID."""
    customer_id = Reservation.objects.values_list("customer_id", flat=True).get(pk=reservation_id)
    CustomerNote.objects.get_or_create(
        id=reservation_id,
        defaults={
            "store_id": store_id,
            "customer_id": customer_id,
            "body": f"Confirmed for {starts_at.astimezone(JST):%Y-%m-%d %H:%M}",
        },
    )


_AMOUNT: Final = re.compile("[0-9]{1,9}")


@store_task(name="parse-upload", atomic=False)
def parse_upload(store_id: UUID, task_id: UUID, source_file_id: UUID) -> None:
    """Count the lines of a source file and add up their amounts.

    Its task is ``RUNNING`` for everybody to see while that lasts, then ``SUCCEEDED``, or ``FAILED`` if a line is no
    amount. Idempotent: a task that has ended stays as it is.
    """
    unfinished = ParseTask.objects.filter(pk=task_id, status__in=[ParseStatus.PENDING, ParseStatus.RUNNING])
    with tenant_context(store_id):
        if not unfinished.update(status=ParseStatus.RUNNING):
            return
        content = SourceFile.objects.values_list("content", flat=True).get(pk=source_file_id)
    lines = content.splitlines()
    wrong = next((place for place, line in enumerate(lines, 1) if not _AMOUNT.fullmatch(line)), None)
    outcome = (
        {"status": ParseStatus.SUCCEEDED, "lines": len(lines), "total": sum(map(int, lines))}
        if wrong is None
        else {"status": ParseStatus.FAILED, "error": f"line {wrong} is no amount of yen below 1,000,000,000"}
    )
    with tenant_context(store_id):
        unfinished.update(**outcome)
        current_job().finish()


class CardRefusedError(Exception):
    """Raised when a bank refuses a card."""


_MOST_YEN = 50_000


@store_task(name="charge-card", max_attempts=1)
def charge_card(store_id: UUID, sale: int, amount: int) -> None:
    """Charge a card; the bank refuses large amounts."""
    if amount > _MOST_YEN:
        raise CardRefusedError(f"the bank refused {amount:,} yen for sale {sale}")


@store_task(name="export-sales", queue="exports")
def export_sales(store_id: UUID, month: str) -> None:
    """Do nothing: the demo pauses this task's queue, as one would during maintenance of another program."""


class TillUnreachableError(Exception):
    """Raised when the till of a salon does not answer."""


_SWITCHED_OFF: Final = 12


@store_task(name="sync-till", max_attempts=4)
def sync_till(store_id: UUID, number: int) -> None:
    """Reach a till: some answer at once, some at a later attempt, and every twelfth never."""
    if number % _SWITCHED_OFF == 0 or current_job().attempt <= number % 3:
        raise TillUnreachableError(f"till {number % _SWITCHED_OFF} does not answer")


@store_task(name="print-report", atomic=False)
def print_report(store_id: UUID, seconds: int) -> None:
    """Take this long, in no transaction."""
    time.sleep(seconds)


@task(name="ask-slow-api", timeout=timedelta(minutes=5), discard_on=(ConnectionError,))
async def ask_slow_api(port: int) -> None:
    """Wait for the answer of an API; without one, its command has ended."""
    await ask(port)


@store_task(name="remind-customer")
def remind_customer(store_id: UUID, visit: int) -> None:
    """Do nothing: it is enqueued for later."""
