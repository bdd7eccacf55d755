"""Writes everything that is held of one store as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TextIO
from uuid import UUID

from salon_jobs.conf import settings as conf
from salon_jobs.core.redaction import redacted
from salon_jobs.offboarding.holdings import HOLDINGS, Holding, pages


def export_store(
    store_id: UUID, out: TextIO, *, unredacted: bool = False, progress: Callable[[str, int], None], using: str
) -> dict[str, int]:
    """Write a line for each row of the store: its columns, and ``table``; returns how many of each. Role: operator.

    Page by page, each a statement of its own: what changes meanwhile is told as it is when its page is read. Payloads
    are rid of what ``REDACT`` names unless ``unredacted``. Raises OSError and database errors.
    """
    counts: dict[str, int] = {}
    for holding in HOLDINGS:
        counts[holding.name] = 0
        for page in pages(holding, store_id, using=using):
            for row in page.values().iterator(chunk_size=500):
                out.write(_line(holding, row, unredacted))
                counts[holding.name] += 1
            progress(holding.name, counts[holding.name])
    return counts


def _line(holding: Holding, row: dict[str, object], unredacted: bool) -> str:
    if holding.payload is not None and not unredacted:
        row[holding.payload] = redacted(row[holding.payload], conf.redact)
    return json.dumps({"table": holding.name, **row}, default=str, ensure_ascii=False) + "\n"
