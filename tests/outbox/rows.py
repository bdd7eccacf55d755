"""Messages of every status as rows, what blocks their aggregates, and the operator's role."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from tests.support import change, seen

OPERATOR = "operator"
ORDERS = "rn::nats:::orders"
# Payloads that SQL can write past ``emit``.
POISON = {
    "nested": '{"note": ' + "[" * 3000 + "]" * 3000 + "}",
    "a long number": '{"note": ' + "9" * 5000 + "}",
    "NUL": '{"note": "\\u0000"}',
    "half a surrogate": '{"note": "\\ud800"}',
    "a long text": json.dumps({"note": "x" * 20_000}),
    "a list": "[1]",
    "an unknown argument": '{"unknown": 1}',
}


def write(
    status: str = "pending",
    *,
    aggregate: str = "",
    store: UUID | None = None,
    kind: str = ORDERS,
    payload: str = "{}",
    headers: str = "{}",
    error: str = "x",
) -> int:
    """Write one message that was tried ten times; return its ID."""
    [(message_id,)] = seen(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, aggregate_id, event, payload, headers, store_id,"
        " status, sent_at, ended_at, retry_count, last_error) SELECT gen_random_uuid(), %s, %s, 'made', %s, %s, %s, s,"
        " CASE s WHEN 'published' THEN now() END, CASE WHEN s IN ('failed', 'skipped') THEN now() END, 10, %s"
        " FROM (SELECT %s AS s) AS given RETURNING id",
        *(kind, aggregate, payload, headers, store, error, status),
    )
    return int(message_id)


def block(head: int, status: str) -> None:
    change(
        "INSERT INTO salon_jobs_blocked_aggregate (aggregate_type, aggregate_id, partition, head_id, store_id, status,"
        " retry_count, retry_at) SELECT aggregate_type, aggregate_id, partition, id, store_id, %s, 10,"
        " now() + interval '1 hour' FROM salon_jobs_message WHERE id = %s",
        status,
        head,
    )


def blocked() -> list[tuple[Any, ...]]:
    """Return head, status, whether it is due and the count of tries of each blocked aggregate."""
    return seen(
        "SELECT head_id, status, retry_at <= now(), retry_count FROM salon_jobs_blocked_aggregate ORDER BY head_id"
    )


def statuses() -> dict[int, str]:
    return dict(seen("SELECT id, status FROM salon_jobs_message"))
