"""Writes everything that is held of one store as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TextIO
from uuid import UUID

from salon_jobs.conf import settings as conf
from salon_jobs.core.redaction import redacted
from salon_jobs.models import InboxMessage
from salon_jobs.offboarding.holdings import HOLDINGS, Holding, pages
from salon_jobs.outbox.inbox import shown_text


def export_store(
    store_id: UUID, out: TextIO, *, unredacted: bool = False, progress: Callable[[str, int], None], using: str
) -> dict[str, int]:
    """Write a line for each row of the store: its columns, and ``table``; returns how many of each. Role: operator.

    Page by page, each a statement of its own: what changes meanwhile is told as it is when its page is read. Payloads
    and headers are rid of what ``REDACT`` names unless ``unredacted``. Raises OSError and database errors.
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


def _line(holding: Holding, row: dict[str, Any], unredacted: bool) -> str:
    if not unredacted:
        row |= {column: redacted(row[column], conf.redact) for column in holding.secret}
        if holding.model is InboxMessage:
            row["raw"] = shown_text(row["raw"])
    # In ASCII: what was written by SQL can hold lone surrogates, which no file in UTF-8 can.
    return json.dumps({"table": holding.name, **row}, default=str) + "\n"
