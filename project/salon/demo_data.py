"""Demo rows: realistic, reproducible for the same seed and instants, and on both sides of every cutoff."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg import sql

from project.salon.business_day import ONE_DAY, business_day_bounds
from project.salon.demo_instants import DemoInstants
from project.salon.demo_names import AREAS, FAMILY_NAMES, GIVEN_NAMES, NOTES, PRICES_YEN, SALONS

SEED: Final = 20260506
STORES: Final = 100
_SECOND: Final = timedelta(seconds=1)
_LADDER_S: Final = 90  # for this long after loading, a tentative reservation lapses every second
_COLUMNS: Final[dict[str, tuple[str, ...]]] = {  # in an order that foreign keys allow
    "store": ("id", "name"),
    "operator": ("id", "email", "name"),
    "operator_session": ("id", "operator_id", "expires_at"),
    "customer": ("id", "store_id", "name", "email", "deleted_at"),
    "customer_note": ("id", "store_id", "customer_id", "body", "deleted_at"),
    "reservation": ("id", "store_id", "customer_id", "status", "starts_at", "expires_at"),
    "sale": ("id", "store_id", "sold_at", "amount"),
    "daily_sales": ("id", "store_id", "business_date", "total", "count"),
    "operator_invitation": ("id", "store_id", "email", "token", "expires_at", "sent_at"),
}
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DemoData:
    """Rows of every table, with columns in the order of ``columns``."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {table: [] for table in _COLUMNS})

    def __len__(self) -> int:
        """Return the number of rows in all tables."""
        return sum(map(len, self.rows.values()))

    def records(self, table: str) -> Iterator[dict[str, Any]]:
        """Yield a table's rows by column name."""
        for row in self.rows[table]:
            yield dict(zip(_COLUMNS[table], row, strict=True))


def make_demo_data(instants: DemoInstants, *, stores: int = STORES, seed: int = SEED) -> DemoData:
    """Make about 500 rows per store, in memory. Deterministic."""
    data = DemoData()
    rng = random.Random(seed)  # noqa: S311 - demo rows, no secrets
    _add_operators(data, rng, instants.operators_tick)
    for number in range(stores):
        _StoreRows(data, rng, instants, number).add()
    return data


def load(
    connection: psycopg.Connection[Any], data: DemoData, *, on_rows: Callable[[int], object] = lambda _count: None
) -> None:
    """Copy the rows into empty tables in one transaction; ``on_rows`` gets the number of rows since its last call.

    Needs a superuser: ``COPY FROM`` is refused under row-level security.
    """
    with connection.transaction(), connection.cursor() as cursor:
        for table, rows in data.rows.items():
            names = sql.SQL(", ").join(map(sql.Identifier, _COLUMNS[table]))
            statement = sql.SQL("COPY public.{} ({}) FROM STDIN").format(sql.Identifier(table), names)
            with cursor.copy(statement) as copy:
                for row in rows:
                    copy.write_row(row)
            on_rows(len(rows))
        tables = sql.SQL(", ").join(sql.Identifier("public", table) for table in _COLUMNS)
        cursor.execute(sql.SQL("ANALYZE {}").format(tables))


def around(cutoff: datetime) -> tuple[datetime, datetime, datetime]:
    """Return instants that show on which side of ``cutoff`` a rule draws its line."""
    return cutoff - _SECOND, cutoff, cutoff + _SECOND


def _new_id(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def _add_operators(data: DemoData, rng: random.Random, tick: datetime) -> None:
    for number in range(200):
        operator = _new_id(rng)
        name = f"{rng.choice(GIVEN_NAMES)} {rng.choice(FAMILY_NAMES)}"
        data.rows["operator"].append((operator, f"operator{number}@chain.example", name))
        for expires_at in around(tick) if number % 2 else _spread(rng, 3, tick, days=(-3, 14)):
            data.rows["operator_session"].append((_new_id(rng), operator, expires_at))


def _spread(rng: random.Random, count: int, middle: datetime, *, days: tuple[float, float]) -> Iterator[datetime]:
    """Yield whole seconds, evenly spread over ``days`` days before and after ``middle``."""
    for _ in range(count):
        yield middle + timedelta(seconds=int(rng.uniform(*days) * 86400))


class _StoreRows:
    """Rows of one store."""

    def __init__(self, data: DemoData, rng: random.Random, instants: DemoInstants, number: int) -> None:
        self._rows = data.rows
        self._rng = rng
        self._instants = instants
        self._number = number
        self._store = _new_id(rng)
        self._customers: list[uuid.UUID] = []

    def add(self) -> None:
        """Add the store and everything that belongs to it."""
        area, name = AREAS[self._number % len(AREAS)], SALONS[self._number // len(AREAS) % len(SALONS)]
        self._rows["store"].append((self._store, f"Salon {name} {area}"))
        self._add_customers()
        self._add_notes()
        self._add_reservations()
        self._add_sales()
        self._add_invitations()

    def _add_customers(self) -> None:
        cutoff = self._instants.customers_tick - timedelta(days=90)
        old = _spread(self._rng, 3, cutoff, days=(-60, -1))
        recent = _spread(self._rng, 4, cutoff, days=(1, 89))
        deleted: list[datetime | None] = [*around(cutoff), *old, *recent]
        for number, deleted_at in enumerate(deleted + [None] * (60 - len(deleted))):
            family, given = self._rng.choice(FAMILY_NAMES), self._rng.choice(GIVEN_NAMES)
            email = f"{given}.{family}.{self._number}.{number}@mail.example".lower()
            self._customers.append(customer := _new_id(self._rng))
            self._rows["customer"].append((customer, self._store, f"{family} {given}", email, deleted_at))

    def _add_notes(self) -> None:
        cutoff = self._instants.notes_tick - timedelta(days=7)
        some = _spread(self._rng, 9, cutoff, days=(-20, 7))
        deleted: list[datetime | None] = [*around(cutoff), *some]
        for number, deleted_at in enumerate(deleted + [None] * (85 - len(deleted))):
            # The first unmarked notes belong to deleted customers, so that both rules apply.
            customer = self._customers[number - 12] if 12 <= number < 22 else self._rng.choice(self._customers)
            note = (_new_id(self._rng), self._store, customer, self._rng.choice(NOTES), deleted_at)
            self._rows["customer_note"].append(note)

    def _add_reservations(self) -> None:
        now = self._instants.loaded_at
        step = 1 if self._number % 10 == 0 else 5
        tentative = [now - _SECOND, now, now + timedelta(hours=1), now + timedelta(hours=1, seconds=1)]
        tentative += [now + timedelta(seconds=seconds) for seconds in range(1, _LADDER_S + 1, step)]
        tentative += _spread(self._rng, 8, now, days=(-0.5, -0.001))
        tentative += _spread(self._rng, 8, now, days=(0.05, 2))
        for expires_at in tentative:
            self._add_reservation("tentative", expires_at, expires_at + timedelta(days=2))
        for starts_at in _spread(self._rng, 80, now, days=(-30, 20)):
            status = self._rng.choices(("confirmed", "cancelled", "expired"), (75, 15, 10))[0]
            self._add_reservation(status, starts_at - timedelta(days=2) if status == "expired" else None, starts_at)

    def _add_reservation(self, status: str, expires_at: datetime | None, starts_at: datetime) -> None:
        starts_at = starts_at.replace(minute=starts_at.minute // 30 * 30, second=0)
        customer = self._rng.choice(self._customers)
        self._rows["reservation"].append((_new_id(self._rng), self._store, customer, status, starts_at, expires_at))

    def _add_sales(self) -> None:
        target = self._instants.target_date
        start, end = business_day_bounds(target)
        closed = self._number % 10 == 7
        sold = [start - _SECOND, end] if closed else [start - _SECOND, start, end - _SECOND, end]
        for day in range(-2, 2):
            if not (closed and day == 0):
                # From 08:00 JST, which is 23:00 UTC of the day before, to past midnight in some salons.
                opening, hours = start + day * ONE_DAY + timedelta(hours=8), 16.5 if self._number % 4 == 0 else 13
                sold += (opening + timedelta(seconds=int(self._rng.uniform(0, hours * 3600))) for _ in range(55))
        amounts = {at: self._rng.choice(PRICES_YEN) + self._rng.randrange(0, 1000, 10) for at in sold}
        for sold_at, amount in amounts.items():
            self._rows["sale"].append((_new_id(self._rng), self._store, sold_at, amount))
        self._add_known_totals([amount for sold_at, amount in amounts.items() if start <= sold_at < end])

    def _add_known_totals(self, amounts: list[int]) -> None:
        """Add yesterday's total and, for some stores, one of the target day: stale or already correct."""
        target = self._instants.target_date
        known = [(target - ONE_DAY, self._rng.randrange(100_000, 400_000), self._rng.randrange(30, 60))]
        if self._number % 10 == 3:
            known.append((target, sum(amounts) - 1100, len(amounts) - 1))
        if self._number % 10 == 5:
            known.append((target, sum(amounts), len(amounts)))
        for day, total, count in known:
            self._rows["daily_sales"].append((_new_id(self._rng), self._store, day, total, count))

    def _add_invitations(self) -> None:
        tick = self._instants.operators_tick
        for number, expires_at in enumerate((*around(tick), tick + timedelta(days=5))):
            email = f"invited.{self._number}.{number}@chain.example"
            sent_at = expires_at - timedelta(days=7) if number % 2 else None
            token = f"{self._rng.getrandbits(192):048x}"
            self._rows["operator_invitation"].append(
                (_new_id(self._rng), self._store, email, token, expires_at, sent_at)
            )
