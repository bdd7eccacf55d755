"""Counts the jobs that wait, by queue and store: exactly up to a bound, from a sample of the table beyond it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.db import connections

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.jobs import registry

# So many are counted one by one; so many of them by store, since that needs the rows and not an index alone.
_COUNTED: Final = 10_000
_COUNTED_BY_STORE: Final = 2000
# So many pages of the table are read for an estimate, and so many groups of lanes.
_PAGES: Final = 1000
_LANES: Final = 1000
_STORES: Final = 10


@dataclass(frozen=True, slots=True)
class Depth:
    """Says how many jobs of a queue or store wait, how many of them are due, and for how long the oldest has been."""

    waiting: int
    due: int
    oldest_due_s: float | None

    def at_least(self, other: Depth) -> Depth:
        """Return the larger of each."""
        ages = [age for age in (self.oldest_due_s, other.oldest_due_s) if age is not None]
        return Depth(max(self.waiting, other.waiting), max(self.due, other.due), max(ages, default=None))


@dataclass(frozen=True, slots=True)
class Depths:
    """Holds what waits by queue and, of the ten stores with the most, by store. Not exact: an estimate."""

    queues: Mapping[str, Depth]
    stores: Mapping[str, Depth]
    exact: bool
    stores_exact: bool


def depths(*, using: str) -> Depths:
    """Count. Role: worker, operator. Costs the same with ten thousand queued as with millions."""
    bounds = {"most": _COUNTED, "few": _COUNTED_BY_STORE, "stores": _STORES}
    kinds, pages, counted = _read("count_waiting", bounds, using)
    queues, stores, exact = kinds["queue"], kinds["store"], counted < _COUNTED
    stores_exact = counted < _COUNTED_BY_STORE
    if not stores_exact:
        percent = min(100.0, 100 * _PAGES / max(1, pages))
        estimates, _, _ = _read("estimate_waiting", {"percent": percent, "lanes": _LANES, "stores": _STORES}, using)
        stores = estimates["store"]
        for name, depth in () if exact else estimates["queue"].items():
            queues[name] = depth.at_least(queues.get(name, Depth(0, 0, None)))
    return Depths(queues, stores, exact, stores_exact)


def record_depths() -> None:
    """Keep the counts of this minute, unless another worker has. Idempotent. Worker role, autocommit."""
    with connections[conf.database].cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM salon_jobs_queue_minute WHERE minute = date_trunc('minute', now()))")
        if cursor.fetchone()[0]:
            return
        now = depths(using=conf.database)
        rows = [
            {"queue": name, **asdict(depth), "oldest_due_s": depth.oldest_due_s or 0.0, "exact": now.exact}
            for name, depth in with_declared(now.queues).items()
        ]
        cursor.execute(sql.load("record_waiting"), {"rows": json.dumps(rows)})


def with_declared(queues: Mapping[str, Depth]) -> dict[str, Depth]:
    """Return the queues by name, with those that tasks name and that are empty."""
    return {name: queues.get(name, Depth(0, 0, None)) for name in sorted({*registry.queue_names(), *queues})}


def _read(statement: str, parameters: dict[str, Any], using: str) -> tuple[dict[str, dict[str, Depth]], int, int]:
    """Return the depths by kind and name, the table's pages, and how many jobs were counted."""
    kinds: dict[str, dict[str, Depth]] = {"queue": {}, "store": {}}
    pages = counted = 0
    with connections[using].cursor() as cursor:
        cursor.execute(sql.load(statement), parameters)
        rows: Iterable[tuple[str, str, int, int, float | None]] = cursor.fetchall()
    for kind, name, waiting, due, oldest_s in rows:
        if kind == "all":
            counted, pages = waiting, due
        else:
            kinds[kind][name] = Depth(int(waiting), int(due), oldest_s)
    return kinds, pages, counted
