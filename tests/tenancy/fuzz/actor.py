"""Random statements and errors inside a store's context, as in requests and jobs."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from django.db import DatabaseError, OperationalError, ProgrammingError, connections, transaction

from project.salon.models import Customer
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy import carry_store
from tests.support import change, in_thread, new_store_id, row

READ = "SELECT store_id, name FROM customer"


def canary(store: UUID) -> str:
    """Return the name of a store's only customer."""
    return f"canary of {store}"


def add_stores(count: int) -> list[UUID]:
    """Add stores, each with its canary."""
    stores = [new_store_id() for _ in range(count)]
    for store in stores:
        change("INSERT INTO store (id, name) VALUES (%s, 'Salon')", store)
        row("customer", store_id=store, name=canary(store), email="")
    return stores


@dataclass(slots=True)
class Witness:
    """Judge of all statements: counts them and collects violations. Shared by all threads."""

    budget: int
    statements: int = 0
    visits: Counter[str] = field(default_factory=Counter)
    leaks: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_done(self) -> bool:
        """Whether enough statements ran, or one was wrong."""
        return self.statements >= self.budget or bool(self.leaks or self.lost or self.surprises)

    def run(self, alias: str, statement: str, *parameters: Any) -> tuple[list[tuple[Any, ...]], int]:
        """Run a statement on Django's cursor; return its rows, and how many it affected."""
        self.count()
        with connections[alias].cursor() as cursor:
            cursor.execute(statement, parameters)
            return (cursor.fetchall() if cursor.description else []), cursor.rowcount

    def read(self, alias: str, store: UUID | None, where: str) -> None:
        """Read the canaries and judge: only the store's own, or none without a store."""
        self.judge(self.run(alias, READ)[0], store, where)

    def judge(self, rows: list[tuple[Any, ...]], store: UUID | None, where: str) -> None:
        """Judge the rows (store, name) that a query returned."""
        own = [] if store is None else [(store, canary(store))]
        if foreign := [row for row in rows if row not in own]:
            self.leaks.append(f"{where}: as {store} {foreign}")
        elif own and rows != own:
            self.lost.append(f"{where}: as {store} {rows}")

    def count(self) -> None:
        with self._lock:
            self.statements += 1

    def visited(self, kind: str) -> None:
        with self._lock:
            self.visits[kind] += 1


INSERT = "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, 'stray', '')"


class Boom(Exception):
    """Error that an actor raises to see what it leaves behind."""


class Actor:
    """Code that acts as one store, in one thread at a time."""

    def __init__(self, witness: Witness, stores: list[UUID], seed: int) -> None:
        self.witness, self.stores = witness, stores
        self.random = random.Random(seed)

    def any_store(self) -> UUID:
        return self.random.choice(self.stores)

    def another(self, store: UUID) -> UUID:
        return self.random.choice([each for each in self.stores if each != store])

    def act(self, alias: str, store: UUID, depth: int = 0) -> None:
        """Act at random inside the store's context and a transaction. May raise ``Boom`` or a DatabaseError."""
        steps: list[Callable[[str, UUID, int], None]] = [
            *(self._read, self._read, self._read_others, self._change, self._change_all, self._insert_for_another),
            *(self._fail_in_savepoint, self._break_a_savepoint, self._literal_savepoint),
            *(self._iterate, self._enter_another, self._later),
        ]
        if depth < 3:
            steps += [self._nest, self._nest, self._switch, self._savepoint, self._without_atomic]
        if self.random.random() < 0.01:
            steps = [self._thread, self._thread_with_copy, self._carried, self._lose_the_connection, self._break]
        for _ in range(self.random.randint(1, 4)):
            self.random.choice(steps)(alias, store, depth)
            if self.random.random() < 0.03:
                raise Boom
        self._read(alias, store, depth)

    def _read(self, alias: str, store: UUID, depth: int) -> None:
        self.witness.read(alias, store, f"read at depth {depth}")
        if current_store_id() != store:
            self.witness.lost.append(f"current_store_id() is {current_store_id()}, not {store}")

    def _read_others(self, alias: str, store: UUID, _: int) -> None:
        rows, _count = self.witness.run(alias, f"{READ} WHERE store_id <> %s OR name LIKE %s", store, "canary of 0%")
        own = [row for row in rows if row[0] == store]
        self.witness.judge([row for row in rows if row not in own], None, "others' rows")

    def _change(self, alias: str, store: UUID, _: int) -> None:
        other = self.another(store)
        _rows, touched = self.witness.run(alias, "UPDATE customer SET email = 'x' WHERE store_id = %s", other)
        if touched:
            self.witness.leaks.append(f"changed {touched} rows of {other} as {store}")

    def _change_all(self, alias: str, store: UUID, _: int) -> None:
        _rows, touched = self.witness.run(alias, "UPDATE customer SET email = ''")
        if touched != 1:
            (self.witness.leaks if touched else self.witness.lost).append(f"changed {touched} rows as {store}")

    def _insert_for_another(self, alias: str, store: UUID, _: int) -> None:
        try:
            with transaction.atomic(using=alias):
                self.witness.run(alias, INSERT, uuid4(), self.another(store))
        except ProgrammingError as error:
            if "row-level security" in str(error):
                return
            raise
        self.witness.leaks.append(f"inserted a row for another store as {store}")

    def _nest(self, alias: str, store: UUID, depth: int) -> None:
        with tenant_context(store, using=alias):
            self.act(alias, store, depth + 1)

    def _without_atomic(self, alias: str, store: UUID, depth: int) -> None:
        with tenant_context(store, using=alias, atomic=False):
            self.act(alias, store, depth + 1)

    def _enter_another(self, alias: str, store: UUID, _: int) -> None:
        try:
            with tenant_context(self.another(store), using=alias):
                self.witness.leaks.append(f"entered another store inside {store} without asking for the switch")
        except TenantContextError:
            return

    def _switch(self, alias: str, store: UUID, depth: int) -> None:
        other = self.another(store)
        with suppress(Boom), tenant_context(other, using=alias, switch=True):
            self.act(alias, other, depth + 1)
        self._read(alias, store, depth)

    def _savepoint(self, alias: str, store: UUID, depth: int) -> None:
        with suppress(Boom), transaction.atomic(using=alias):
            self.act(alias, store, depth + 1)

    def _fail_in_savepoint(self, alias: str, store: UUID, depth: int) -> None:
        with suppress(Boom), transaction.atomic(using=alias):
            self._read(alias, store, depth)
            raise Boom

    def _break_a_savepoint(self, alias: str, _: UUID, __: int) -> None:
        with suppress(ProgrammingError), transaction.atomic(using=alias):
            self.witness.run(alias, "SELECT nonsense")

    def _literal_savepoint(self, alias: str, store: UUID, depth: int) -> None:
        self.witness.run(alias, "SAVEPOINT by_hand")
        self._read(alias, store, depth)
        self.witness.run(alias, self.random.choice(("RELEASE by_hand", "ROLLBACK TO by_hand")))

    def _iterate(self, alias: str, store: UUID, depth: int) -> None:
        self.witness.count()
        cursor = Customer.objects.using(alias).values_list("store_id", "name").iterator(chunk_size=1)
        rows: list[Any] = [next(cursor, None)]
        if self.random.random() < 0.5:
            self._read(alias, store, depth)
        self.witness.judge([row for row in (*rows, *cursor) if row], store, "a server-side cursor")

    def _later(self, alias: str, store: UUID, _: int) -> None:
        def look() -> None:
            # A callback of a bare atomic() in a context without a transaction runs between its transactions: none then.
            rows, _count = self.witness.run(alias, READ)
            self.witness.judge(rows, store if rows or connections[alias].in_atomic_block else None, "after the commit")

        transaction.on_commit(look, using=alias)

    def _thread(self, _: str, __: UUID, ___: int) -> None:
        self._elsewhere(lambda: self.witness.read("default", None, "a new thread"))

    def _thread_with_copy(self, _: str, store: UUID, __: int) -> None:
        def work() -> None:
            self.witness.read("default", None, "a thread with the context, and no tenant_context")
            with tenant_context(store, using="default"):
                self.witness.read("default", store, "a thread with the context")

        context = copy_context()
        self._elsewhere(lambda: context.run(work))

    def _carried(self, _: str, store: UUID, __: int) -> None:
        self._elsewhere(carry_store(lambda: self.witness.read("default", store, "carried"), using="default"))

    def _elsewhere(self, work: Callable[[], None]) -> None:
        try:
            in_thread(work)
        except Exception as error:  # kept, and judged at the end
            self.witness.surprises.append(f"in a thread: {error!r}")

    def _lose_the_connection(self, alias: str, _: UUID, __: int) -> None:
        with suppress(OperationalError):
            self.witness.run(alias, "SELECT pg_terminate_backend(pg_backend_pid())")
        raise Boom

    def _break(self, alias: str, _: UUID, __: int) -> None:
        with suppress(DatabaseError):
            self.witness.run(alias, "SELECT nonsense")
        raise Boom
