"""Reads lanes and claims from them: the statements of a fair claim, and how a batch is shared among stores.

A lane holds the queued jobs of one store, queue, task, priority and concurrency key: whatever can hold one of them back
holds them all back, so a lane is skipped by one look, however many jobs wait in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from salon_jobs.core.records import NO_STORE, ClaimedJob
from salon_jobs.jobs.store import in_claim_order
from salon_jobs.tenancy.statements import many_rows_of, rows_of

STORES_A_LOOK: Final = 64
GROUPS_A_STORE: Final = 32
LANES_A_GROUP: Final = 32
LANES_A_CLAIM: Final = 256
FIRST_GROUP: Final = -(2**31)


class Lane(NamedTuple):
    """Names one lane, in the column order of ``sql/list_lanes.sql``; ``store`` is NO_STORE for system tasks.

    ``first_us`` and ``first_id`` are the instant (microseconds since 1970) and id of the first job it held then.
    """

    store: UUID
    number: int
    queue: str
    task: str
    priority: int
    concurrency_key: str | None
    due: bool
    first_us: int = 0
    first_id: int = 0

    @property
    def group(self) -> tuple[UUID, int]:
        """Return what it shares with the lanes that differ in their keys alone."""
        return self.store, self.number >> 32

    @property
    def scopes(self) -> tuple[str, ...]:
        """Return what a limit can be on, as ``kind:name``."""
        names = (f"queue:{self.queue}", f"task:{self.task}", f"store:{self.store}")
        return names if self.concurrency_key is None else (*names, f"key:{self.task}:{self.concurrency_key}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """Says what a process may run now: these tasks, these queues (None: all), without what is paused."""

    tasks: Sequence[str]
    queues: Sequence[str] | None = None
    paused_queues: Sequence[str] = ()
    paused_stores: Sequence[str] = ()


class Look(NamedTuple):
    """Holds the lanes that one look found, how many stores it passed, and the last of them."""

    lanes: list[Lane]
    stores: int
    last: UUID | None


# From where on a lane is read: the instant (microseconds since 1970) and id of the job claimed last from it.
LowWater = Mapping[tuple[UUID, int], tuple[int, int]]
_FROM_THE_START: Final = (-62_135_510_400_000_000, 0)  # 0001-01-02, the earliest instant a job can have


@dataclass(frozen=True, slots=True)
class Share:
    """Says how many jobs one claim may take from a lane, and from its store."""

    lane: Lane
    quota: int
    store_quota: int


def list_lanes(after: UUID | None, runnable: Runnable, *, group: int = FIRST_GROUP, key: int = 0) -> Look:
    """List the lanes of the next stores, some of each, from a group and within each from a key on. Role: worker."""
    rows = rows_of("list_lanes", list_parameters(after, runnable, group=group, key=key))
    found = [Lane(*row) for row in rows if row[1] is not None]
    return Look(found, len({row[0] for row in rows}), rows[-1][0] if rows else None)


def list_parameters(
    after: UUID | None, runnable: Runnable, *, group: int = FIRST_GROUP, key: int = 0
) -> dict[str, Any]:
    """Return what ``sql/list_lanes.sql`` takes."""
    return {
        "after": after, "stores": STORES_A_LOOK, "groups": GROUPS_A_STORE, "lanes": LANES_A_GROUP,
        "group": group, "key": key, "tasks": list(runnable.tasks),
        "queues": None if runnable.queues is None else list(runnable.queues),
        "paused_queues": list(runnable.paused_queues), "paused_stores": list(runnable.paused_stores),
    }  # fmt: skip


def claim_lanes(process_id: int, shares: Sequence[Share], room: int, low: LowWater) -> list[ClaimedJob]:
    """Claim up to ``room`` due jobs by shares; returns them in claim order. A buried process gets none."""
    return in_claim_order(many_rows_of("claim_lanes", claim_parameters(process_id, shares, room, low)))


def claim_parameters(process_id: int, shares: Sequence[Share], room: int, low: LowWater) -> dict[str, Any]:
    """Return what ``sql/claim_lanes.sql`` takes."""
    lows = [low.get((share.lane.store, share.lane.number), _FROM_THE_START) for share in shares]
    each_store = {share.lane.store: share.store_quota for share in shares}
    return {
        "process_id": process_id, "room": room, "clock": time.monotonic(),
        "stores": [share.lane.store for share in shares], "lanes": [share.lane.number for share in shares],
        "quotas": [share.quota for share in shares], "keys": [share.lane.concurrency_key for share in shares],
        "lows_us": [us for us, _ in lows], "low_ids": [job_id for _, job_id in lows],
        "each_store": list(each_store), "store_quotas": list(each_store.values()),
    }  # fmt: skip


def lock_scopes(scopes: Iterable[str]) -> set[str]:
    """Take the right to claim within these scopes until the transaction ends; returns those nobody else has now."""
    names = sorted(scopes)
    return {row[0] for row in rows_of("lock_scopes", {"scopes": names})} if names else set()


def running_by_scope() -> dict[str, int]:
    """Count the running jobs of every scope that has any."""
    counts: dict[str, int] = {}
    for queue, task, store_id, key, running in rows_of("running_counts", {}):
        lane = Lane(store_id or NO_STORE, 0, queue, task, 0, key, due=False)
        for scope in lane.scopes:
            counts[scope] = counts.get(scope, 0) + running
    return counts


def refill_tokens(scopes: Iterable[str]) -> dict[str, float]:
    """Refill the buckets of rate limits and return what each holds."""
    names = sorted(scopes)
    rows: list[Any] = rows_of("refill_tokens", {"scopes": names}) if names else []
    return dict(rows)


def choose(lanes: Sequence[Lane]) -> list[Lane]:
    """Choose as many lanes as one claim reads: of each store alike, within it by priority."""
    by_store = [list(group) for _, group in groupby(sorted(lanes, key=attrgetter("store")), key=attrgetter("store"))]
    most = max(1, LANES_A_CLAIM // max(1, len(by_store)))
    return [lane for group in by_store for lane in sorted(group, key=attrgetter("priority"))[:most]]


def share_out(
    lanes: Sequence[Lane], room: int, capacity: dict[str, int], limits_of: Callable[[Lane], Sequence[str]]
) -> list[Share]:
    """Share a batch among the stores of ``lanes``: each store alike, within it by priority, all within ``capacity``.

    ``capacity`` says how many more may run in a limited scope; what a share may take is reserved there. A scope that
    several lanes want is shared alike among them.
    """
    chosen = choose(lanes)
    store_quota = -(-room // max(1, len({lane.store for lane in chosen})))
    wanted: dict[str, int] = {}
    for lane in chosen:
        for scope in limits_of(lane):
            wanted[scope] = wanted.get(scope, 0) + 1
    shares: list[Share] = []
    for lane in chosen:
        quota = store_quota
        scopes = limits_of(lane)
        for scope in scopes:
            quota = min(quota, -(-capacity[scope] // wanted[scope]))
            wanted[scope] -= 1
        if quota > 0:
            shares.append(Share(lane, quota, store_quota))
            for scope in scopes:
                capacity[scope] -= quota
    return shares
