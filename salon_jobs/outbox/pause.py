"""Pauses and resumes destinations at run time."""

from __future__ import annotations

from django.db import transaction

from salon_jobs.conf import settings as conf
from salon_jobs.core.destinations import parse_destination
from salon_jobs.models import DestinationState
from salon_jobs.outbox import wake


def pause_destination(aggregate_type: str, *, using: str | None = None) -> None:
    """Send nothing to one destination until it is resumed; relays follow within a second. Role: operator, worker.

    Messages are still written, and wait. Raises MessageInvalid for a name that is none.
    """
    _set_paused(aggregate_type, True, using)


def resume_destination(aggregate_type: str, *, using: str | None = None) -> None:
    """Send to a paused destination again what waits, in order. Role, errors: as ``pause_destination``."""
    _set_paused(aggregate_type, False, using)


def _set_paused(aggregate_type: str, paused: bool, using: str | None) -> None:
    parse_destination(aggregate_type)
    alias = using or conf.database
    with transaction.atomic(using=alias):
        DestinationState.objects.using(alias).bulk_create(
            [DestinationState(aggregate_type=aggregate_type, paused=paused)],
            update_conflicts=True, unique_fields=["aggregate_type"], update_fields=["paused"],
        )  # fmt: skip
        wake.operator_changed(using=alias)
