"""Runs the statements of all actors and judges what they show."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import connections

READ = "SELECT store_id, name FROM customer"


def canary(store: UUID) -> str:
    """Return what a store's one customer is called."""
    return f"canary of {store}"


@dataclass(slots=True)
class Witness:
    """Counts statements and keeps what was wrong. Shared by all threads."""

    budget: int
    statements: int = 0
    visits: dict[str, int] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_done(self) -> bool:
        """Tell whether enough statements ran, or something was wrong."""
        return self.statements >= self.budget or bool(self.leaks or self.lost or self.surprises)

    def run(self, alias: str, statement: str, *parameters: Any) -> tuple[list[tuple[Any, ...]], int]:
        """Run a statement over Django's cursor; return its rows, and how many it touched."""
        self.count()
        with connections[alias].cursor() as cursor:
            cursor.execute(statement, parameters)
            return (cursor.fetchall() if cursor.description else []), cursor.rowcount

    def read(self, alias: str, store: UUID | None, where: str) -> None:
        """Read the canaries and judge: the store's own alone, or none without a store."""
        self.judge(self.run(alias, READ)[0], store, where)

    def judge(self, rows: list[tuple[Any, ...]], store: UUID | None, where: str) -> None:
        """Judge the rows (store, name) that a read has shown."""
        own = [] if store is None else [(store, canary(store))]
        if foreign := [row for row in rows if row not in own]:
            self.leaks.append(f"{where}: as {store} {foreign}")
        elif own and rows != own:
            self.lost.append(f"{where}: as {store} {rows}")

    def count(self) -> None:
        """Count a statement."""
        with self._lock:
            self.statements += 1

    def visited(self, kind: str) -> None:
        """Count a visit."""
        with self._lock:
            self.visits[kind] = self.visits.get(kind, 0) + 1
