"""Fills and empties our own outbox as the superuser, unmeasured."""

from __future__ import annotations

from typing import Final

from benchmarks.observer import Queue
from benchmarks.server import Database

NOWHERE: Final = "rn::null:::orders"
STREAM: Final = "orders"
TO_STREAM: Final = f"rn::nats:::{STREAM}"
POISONED: Final = "rn::poisoned:::orders"
POISON: Final = "poison"
AGGREGATES: Final = 1000
OUTBOX: Final = Queue("salon_jobs_message", unfinished="status = 'pending'")
_PAYLOAD: Final = '{"order": 1234567, "store": "Salon 17", "total": "12800.00", "currency": "JPY"}'


def empty(database: Database) -> None:
    """Remove every message, and what relays know of them."""
    database.execute(
        "TRUNCATE salon_jobs_message, salon_jobs_blocked_aggregate, salon_jobs_partition, salon_jobs_destination,"
        " salon_jobs_process RESTART IDENTITY"
    )


def fill(database: Database, to: str, messages: int, *, aggregate: str | None = None) -> None:
    """Add messages, over a thousand aggregates in turn or all of one."""
    of = "(n %% %s::integer)::text" if aggregate is None else "%s::text"
    database.execute(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, aggregate_id, event, payload, producer)"
        f" SELECT gen_random_uuid(), %s, {of}, 'order.created', '{_PAYLOAD}', 'bench'"
        " FROM generate_series(1, %s::bigint) n",
        to,
        AGGREGATES if aggregate is None else aggregate,
        messages,
    )
