"""Groups failed jobs by what made them fail: the task, the error's class, where it was raised, and its message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connections

from salon_jobs import sql

# A page reads no more than this, however many failed.
MOST_KINDS: Final = 200
COUNTED: Final = 1000


@dataclass(frozen=True, slots=True)
class FailureKind:
    """Tells of failed jobs that failed alike; first and last are those of the lowest and the highest id.

    ``jobs`` is counted up to ``COUNTED``. ``message`` is that of the newest, the sample.
    """

    fingerprint: int
    task: str
    error_class: str
    first_at: datetime | None
    last_at: datetime | None
    newest_id: int
    jobs: int
    message: str


def failure_kinds(*, using: str) -> list[FailureKind]:
    """Return up to ``MOST_KINDS`` kinds of failures, the one that was seen last first. Role: operator, worker, web."""
    with connections[using].cursor() as cursor:
        cursor.execute(sql.load("failure_kinds"), {"kinds": MOST_KINDS, "most": COUNTED + 1})
        rows = cursor.fetchall()
    return sorted((FailureKind(*row) for row in rows), key=lambda kind: kind.newest_id, reverse=True)


def error_classes(*, using: str) -> list[str]:
    """Return up to 50 classes of errors by which jobs failed. Roles as ``failure_kinds``."""
    with connections[using].cursor() as cursor:
        cursor.execute(sql.load("error_classes"))
        return [row[0] for row in cursor.fetchall()]
