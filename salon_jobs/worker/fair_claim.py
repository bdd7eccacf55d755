"""Fair claims: claim groups, scanned store by store, and a batch shared among stores."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import connections

from salon_jobs.core.records import NO_STORE, ClaimedJob
from salon_jobs.db.statements import hot_rows, many_hot_rows
from salon_jobs.jobs.queries import in_claim_order

STORES_A_LOOK: Final = 64
GROUPS_A_STORE: Final = 32
LANES_A_GROUP: Final = 32
LANES_A_CLAIM: Final = 256
FIRST_GROUP: Final = -(2**31)


class ClaimGroup(NamedTuple):
    """One claim group, in the column order of ``sql/list_groups.sql``; ``store`` is NO_STORE for system tasks.

    ``first_us`` and ``first_id`` are the instant (microseconds since 1970) and id of its first job at the time.
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
        """What it shares with the claim groups that differ only in their keys."""
        return self.store, self.number >> 32

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes to which a limit can apply, as ``kind:name``."""
        names = (f"queue:{self.queue}", f"task:{self.task}", f"store:{self.store}")
        return names if self.concurrency_key is None else (*names, f"key:{self.task}:{self.concurrency_key}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFilter:
    """Filter for what a process may run now: these tasks and queues (None: all), without what is paused."""

    tasks: Sequence[str]
    queues: Sequence[str] | None = None
    paused_queues: Sequence[str] = ()
    paused_stores: Sequence[str] = ()


class ScanPage(NamedTuple):
    """Claim groups listed by one query, how many stores it covers, and the last of them."""

    lanes: list[ClaimGroup]
    stores: int
    last: UUID | None


# Where to continue reading each claim group: instant (microseconds since 1970) and id of the job last claimed from it.
LowWater = Mapping[tuple[UUID, int], tuple[int, int]]
_FROM_THE_START: Final = (-62_135_510_400_000_000, 0)  # 0001-01-02, the earliest instant a job can have


@dataclass(frozen=True, slots=True)
class Quota:
    """Number of jobs that one claim may take from a claim group, and from its store."""

    lane: ClaimGroup
    quota: int
    store_quota: int


def list_groups(after: UUID | None, runnable: ClaimFilter, *, group: int = FIRST_GROUP, key: int = 0) -> ScanPage:
    """List some claim groups of each of the next stores, from a given group and, within it, key. Role: worker."""
    rows = hot_rows("list_groups", list_parameters(after, runnable, group=group, key=key))
    found = [ClaimGroup(*row) for row in rows if row[1] is not None]
    return ScanPage(found, len({row[0] for row in rows}), rows[-1][0] if rows else None)


def list_parameters(
    after: UUID | None, runnable: ClaimFilter, *, group: int = FIRST_GROUP, key: int = 0
) -> dict[str, Any]:
    """Return the parameters of ``sql/list_groups.sql``."""
    return {
        "after": after,
        "stores": STORES_A_LOOK,
        "groups": GROUPS_A_STORE,
        "claim_groups": LANES_A_GROUP,
        "group": group,
        "key": key,
        "tasks": list(runnable.tasks),
        "queues": None if runnable.queues is None else list(runnable.queues),
        "paused_queues": list(runnable.paused_queues),
        "paused_stores": list(runnable.paused_stores),
    }


def claim_groups(process_id: int, shares: Sequence[Quota], room: int, low: LowWater) -> list[ClaimedJob]:
    """Claim up to ``room`` due jobs by quota, in claim order. A process declared dead gets none."""
    return in_claim_order(many_hot_rows("claim_groups", claim_parameters(process_id, shares, room, low)))


def claim_parameters(process_id: int, shares: Sequence[Quota], room: int, low: LowWater) -> dict[str, Any]:
    """Return the parameters of ``sql/claim_groups.sql``."""
    lows = [low.get((share.lane.store, share.lane.number), _FROM_THE_START) for share in shares]
    each_store = {share.lane.store: share.store_quota for share in shares}
    return {
        "process_id": process_id,
        "room": room,
        "clock": time.monotonic(),
        "stores": [share.lane.store for share in shares],
        "claim_groups": [share.lane.number for share in shares],
        "quotas": [share.quota for share in shares],
        "keys": [share.lane.concurrency_key for share in shares],
        "lows_us": [us for us, _ in lows],
        "low_ids": [job_id for _, job_id in lows],
        "each_store": list(each_store),
        "store_quotas": list(each_store.values()),
    }


def lock_scopes(scopes: Iterable[str]) -> set[str]:
    """Lock these scopes for claiming until the transaction ends; return those not locked by others."""
    names = sorted(scopes)
    return {row[0] for row in hot_rows("lock_scopes", {"scopes": names})} if names else set()


def running_by_scope() -> dict[str, int]:
    """Return the number of running jobs of every scope that has any."""
    counts: dict[str, int] = {}
    for queue, task, store_id, key, running in hot_rows("running_counts", {}):
        lane = ClaimGroup(store_id or NO_STORE, 0, queue, task, 0, key, due=False)
        for scope in lane.scopes:
            counts[scope] = counts.get(scope, 0) + running
    return counts


def refill_tokens(scopes: Iterable[str]) -> dict[str, float]:
    """Refill the buckets of rate limits and return the tokens in each."""
    names = sorted(scopes)
    rows: list[Any] = hot_rows("refill_tokens", {"scopes": names}) if names else []
    return dict(rows)


def choose(lanes: Sequence[ClaimGroup]) -> list[ClaimGroup]:
    """Choose as many claim groups as one claim reads: equally many per store, by priority within a store."""
    by_store = [list(group) for _, group in groupby(sorted(lanes, key=attrgetter("store")), key=attrgetter("store"))]
    most = max(1, LANES_A_CLAIM // max(1, len(by_store)))
    return [lane for group in by_store for lane in sorted(group, key=attrgetter("priority"))[:most]]


def share_out(
    lanes: Sequence[ClaimGroup], room: int, capacity: dict[str, int], limits_of: Callable[[ClaimGroup], Sequence[str]]
) -> list[Quota]:
    """Share a batch equally among the stores of ``lanes``, by priority within a store, all within ``capacity``.

    ``capacity`` is how many more jobs may run in each limited scope; what a quota may take is reserved there. Claim
    groups that compete for a scope share it equally.
    """
    chosen = choose(lanes)
    store_quota = -(-room // max(1, len({lane.store for lane in chosen})))
    wanted: dict[str, int] = {}
    for lane in chosen:
        for scope in limits_of(lane):
            wanted[scope] = wanted.get(scope, 0) + 1
    shares: list[Quota] = []
    for lane in chosen:
        quota = store_quota
        scopes = limits_of(lane)
        for scope in scopes:
            quota = min(quota, -(-capacity[scope] // wanted[scope]))
            wanted[scope] -= 1
        if quota > 0:
            shares.append(Quota(lane, quota, store_quota))
            for scope in scopes:
                capacity[scope] -= quota
    return shares


# A scan ends after this many seconds, or once it has found STORES_A_LOOK stores.
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of one scan: claim groups with due jobs, whether it covered all remaining stores, and its duration."""

    lanes: Sequence[ClaimGroup]
    complete: bool
    took_s: float


class GroupScanner:
    """Round-robin scanner of the stores for one process, a few at a time. Not thread-safe."""

    def __init__(self) -> None:
        # Each process starts its round at a different store.
        self._after: UUID | None = UUID(int=random.getrandbits(128))
        self._crowded = False
        self._complete = True
        # Where the round of the stores began, and whether it has wrapped around.
        self._began_at: UUID | None = self._after
        self._wrapped = False

    def look(self, runnable: ClaimFilter, *, afresh: bool) -> Scan:
        """Scan from where the last scan ended, for a limited time.

        ``afresh`` begins a new round. Raises database errors.
        """
        began = time.monotonic()
        found: dict[tuple[UUID, int], ClaimGroup] = {}
        # Every other scan begins at a random point inside a crowded store's claim groups, so that none waits forever.
        group, key = FIRST_GROUP, 0
        if inside := self._crowded:
            group, key = random.randrange(-(2**31), 2**31), random.randrange(2**32)  # noqa: S311 - no secret
        self._crowded = False
        if self._complete or afresh:
            self._complete = False
            self._began_at, self._wrapped = self._after, self._after is None
        over = False
        while not over:
            look = list_groups(self._after, runnable, group=group, key=key)
            self._crowded |= not inside and _crowds(look.lanes)
            found.update(((lane.store, lane.number), lane) for lane in look.lanes if lane.due)
            self._after = look.last
            if look.stores < STORES_A_LOOK:
                self._after = None
                over, self._wrapped = self._wrapped, True
            elif self._wrapped and self._began_at is not None and look.last is not None:
                over = look.last >= self._began_at
            self._complete = over and not inside
            if len({store_id for store_id, _ in found}) >= STORES_A_LOOK or time.monotonic() - began > _LOOK_S:
                break
        return Scan(list(found.values()), self._complete, time.monotonic() - began)


def in_background(look: Callable[[], Scan]) -> Future[Scan]:
    """Run one scan in a thread with its own connection, while the caller continues to claim."""
    listed: Future[Scan] = Future()

    def run() -> None:
        try:
            listed.set_result(look())
        except BaseException as error:  # raised to whoever asks for the result
            listed.set_exception(error)
        finally:
            connections.close_all()

    threading.Thread(target=run, name="salon-jobs-lister", daemon=True).start()
    return listed


def _crowds(listed: Sequence[ClaimGroup]) -> bool:
    """Return whether a store has more groups, or a group more claim groups, than a scan lists."""
    per_group = Counter(lane.group for lane in listed)
    per_store = Counter(store_id for store_id, _ in per_group)
    return LANES_A_GROUP in per_group.values() or GROUPS_A_STORE in per_store.values()
