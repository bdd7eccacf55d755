"""Tells who holds the gate: which open transactions keep the relays from sending what was written after theirs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connections

from salon_jobs import sql

# Counting the messages behind ends here.
COUNTED: Final = 100_000


@dataclass(frozen=True, slots=True)
class GateHolder:
    """Is one session whose open transaction wrote messages; pid 0: a prepared transaction (``pg_prepared_xacts``).

    ``since`` is when its transaction began, ``state`` and ``query`` what it does: None and "" where the role may not
    see them, which membership in ``pg_read_all_stats`` changes.
    """

    pid: int
    role: str
    application: str
    since: datetime | None
    state: str
    query: str


@dataclass(frozen=True, slots=True)
class GateState:
    """Says how far messages are relayed, how many wait behind that (counted to 100,000), and for whom."""

    bound: int
    allocated: int
    behind: int
    holders: tuple[GateHolder, ...]


def gate_state(*, using: str) -> GateState:
    """Look at the gate. Role: operator, worker."""
    with connections[using].cursor() as cursor:
        cursor.execute(sql.load("gate"))
        [(allocated, bound, pids)] = cursor.fetchall()
        cursor.execute(sql.load("messages_behind"), {"bound": bound, "most": COUNTED})
        [(behind,)] = cursor.fetchall()
        cursor.execute(sql.load("gate_holders"), {"pids": pids})
        holders = tuple(GateHolder(*row) for row in cursor.fetchall())
    return GateState(bound, allocated, behind, holders)
