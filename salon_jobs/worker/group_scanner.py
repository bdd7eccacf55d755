"""Scanner of claim groups, store by store, and its schedule."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple

from django.db import connections

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.records import ClaimedJob, StoreId
from salon_jobs.db.statements import run_raw
from salon_jobs.jobs.limits import scopes_of

STORES_PER_SCAN: Final = 64
PREFIXES_PER_STORE: Final = 32
# At least; if all stores have few prefixes, a scan lists as many groups as a claim reads.
GROUPS_PER_PREFIX: Final = 32
GROUPS_PER_CLAIM: Final = 256
FIRST_PREFIX: Final = -(2**31)
# A scan is used for ten times as long as it took, within these bounds. The next one finds new groups, and jobs that
# were committed late, which sort before those already claimed from their group.
_SCAN_EVERY_S: Final = (0.05, 3.0)
# If a scan takes longer, behind dead rows, the next one runs in the background.
_BACKGROUND_S: Final = 0.1
# A scan ends after this many seconds, or once it has found STORES_PER_SCAN stores.
_SCAN_S: Final = 0.02


class ClaimGroup(NamedTuple):
    """A claim group, in the column order of ``list_groups.sql``; ``store`` is the key of no store for system tasks.

    ``first_us`` and ``first_id`` are the instant (microseconds since 1970) and id of its first job when scanned.
    """

    store: StoreId
    number: int
    queue: str
    task: str
    priority: int
    concurrency_key: str | None
    due: bool
    first_us: int = 0
    first_id: int = 0

    @property
    def id(self) -> tuple[StoreId, int]:
        return self.store, self.number

    @property
    def prefix(self) -> tuple[StoreId, int]:
        """The columns that it shares with the claim groups that differ only in their keys."""
        return self.store, self.number >> 32

    @property
    def key(self) -> int:
        """What differs between the claim groups of a prefix, which are ordered by it: a hash of the concurrency key."""
        return self.number & (2**32 - 1)

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes to which a limit can apply, as ``kind:name``."""
        return scopes_of(self.queue, self.task, self.store, self.concurrency_key)


class ClaimFilter(NamedTuple):
    """Tasks and queues that a process may run now (None: all), without the paused ones."""

    tasks: list[str]
    queues: list[str] | None = None
    paused_queues: Sequence[str] = []
    paused_stores: Sequence[str] = []


class ScanPage(NamedTuple):
    """Claim groups listed by one query, the number of stores it covers, and the last group."""

    groups: list[ClaimGroup]
    stores: int
    last: StoreId | None


class Scan(NamedTuple):
    """Result of one scan: claim groups with due jobs, and its duration.

    ``complete``: it covered all remaining stores; ``crowded``: one of them has more claim groups than it listed.
    """

    groups: Sequence[ClaimGroup]
    complete: bool
    took_s: float
    crowded: bool = False


class ScanRange(NamedTuple):
    """Claim groups that one query lists: of the stores after one, and in each of them from a prefix and a key on.

    Of each prefix, up to ``groups`` are listed.
    """

    after: StoreId | None
    prefix: int = FIRST_PREFIX
    key: int = 0
    groups: int = GROUPS_PER_PREFIX


def list_groups(scan_range: ScanRange, runnable: ClaimFilter, *, using: str) -> ScanPage:
    """List some claim groups of each of the next stores. Role: worker."""
    rows = run_raw("list_groups", list_parameters(scan_range, runnable), jit=False, using=using)
    groups = [ClaimGroup(*row) for row in rows if row[1] is not None]
    return ScanPage(groups, len({row[0] for row in rows}), rows[-1][0] if rows else None)


def list_due_groups(runnable: ClaimFilter, *, using: str) -> list[ClaimGroup]:
    """List the claim groups of the next due jobs, however many groups have none. Role: worker."""
    parameters = {"jobs": GROUPS_PER_CLAIM, **runnable._asdict()}
    return [ClaimGroup(*row) for row in run_raw("list_due_groups", parameters, jit=False, using=using)]


def list_parameters(scan_range: ScanRange, runnable: ClaimFilter) -> dict[str, Any]:
    bounds = {"stores": STORES_PER_SCAN, "prefixes": PREFIXES_PER_STORE}
    return {**bounds, **scan_range._asdict(), **runnable._asdict()}


class GroupScanner:
    """Round-robin scanner of the stores for one process, a few at a time. Not thread-safe."""

    def __init__(self, *, using: str) -> None:
        self._using = using
        # Each process starts its round at a different store.
        self._after: StoreId | None = store_key().somewhere()
        # What all stores have together decides it, and not one page, since another may have many more.
        self._per_prefix = GROUPS_PER_PREFIX
        self._is_complete = True
        # Where the round of the stores began, and whether it has wrapped around.
        self._began_at: StoreId | None = self._after
        self._wrapped = False

    def scan(self, runnable: ClaimFilter, *, new_round: bool) -> Scan:
        """Scan from where the last scan ended, for a limited time.

        ``new_round`` begins a new round. Raises database errors.
        """
        began = time.monotonic()
        due: dict[tuple[StoreId, int], ClaimGroup] = {}
        begins_first, crowded, prefixes = self._after is None, False, set[tuple[StoreId, int]]()
        if self._is_complete or new_round:
            self._is_complete = False
            self._began_at, self._wrapped = self._after, self._after is None
        while not self._is_complete:
            first = ScanRange(self._after, groups=self._per_prefix)
            page = list_groups(first, runnable, using=self._using)
            groups = page.groups
            if inside := self._inside(first, groups):
                crowded = True
                groups = [*groups, *list_groups(inside, runnable, using=self._using).groups]
            prefixes.update(group.prefix for group in groups)
            due.update((group.id, group) for group in groups if group.due)
            self._after = page.last
            if page.stores < STORES_PER_SCAN:
                self._after = None
                self._is_complete, self._wrapped = self._wrapped, True
            elif self._wrapped and self._began_at is not None and page.last is not None:
                self._is_complete = page.last >= self._began_at
            if len({store_id for store_id, _ in due}) >= STORES_PER_SCAN or time.monotonic() - began > _SCAN_S:
                break
        if crowded and not due:  # the due job may be in one of the groups left out
            due.update((group.id, group) for group in list_due_groups(runnable, using=self._using))
        of_all = begins_first and self._after is None
        self._per_prefix = max(GROUPS_PER_PREFIX, GROUPS_PER_CLAIM // max(1, len(prefixes)) if of_all else 0)
        return Scan(list(due.values()), self._is_complete, time.monotonic() - began, crowded)

    def _inside(self, first: ScanRange, groups: Sequence[ClaimGroup]) -> ScanRange | None:
        """Return a range with groups that the first left out, in the same stores; None if it left out none.

        It begins after the first keys or at a random point, so that no group waits forever for those before it.
        """
        of_prefix = Counter(group.prefix for group in groups)
        if PREFIXES_PER_STORE in Counter(store_id for store_id, _ in of_prefix).values():
            # From the first key on, prefixes with a single group are found; from another, keys of prefixes left out.
            prefix, key = random.randrange(-(2**31), 2**31), random.choice((0, random.randrange(2**32)))  # noqa: S311 - no secret
            return first._replace(prefix=prefix, key=key)
        last_keys = {group.prefix: group.key for group in groups}
        if full := [last_keys[prefix] for prefix, count in of_prefix.items() if count == first.groups]:
            return first._replace(key=random.choice((min(full) + 1, random.randrange(2**32))))  # noqa: S311 - no secret
        return None


class ScanSchedule:
    """Schedule of the scans of claim groups of one process, with the result of the last scan. Not thread-safe.

    Each group is read from after the job last claimed from it, its low-water mark, and not past dead rows again.
    """

    def __init__(self, *, using: str) -> None:
        self._scanner = GroupScanner(using=using)
        self._scan = Scan((), complete=True, took_s=0.0)
        self._scan_at = float("-inf")
        self._last_took_s = 0.0
        self._background: Future[Scan] | None = None
        #: number of the current round of all stores
        self.round = 0
        #: instant (microseconds since 1970) and id of the job last claimed, by claim group
        self.low_water: dict[tuple[StoreId, int], tuple[int, int]] = {}

    @property
    def groups(self) -> Sequence[ClaimGroup]:
        """Claim groups with due jobs."""
        return self._scan.groups

    @property
    def is_slow(self) -> bool:
        """Whether dead rows make scans slow, one after the other; they would slow a claim in due order, too."""
        return 10 * min(self._scan.took_s, self._last_took_s) > _SCAN_EVERY_S[0]

    def refresh(self, runnable: Callable[[], ClaimFilter], *, new_round: bool) -> bool:
        """Scan again if it is due, in the background if scans are slow; return whether the scan is new.

        ``new_round`` begins another round of the stores, as the end of the last one does. Raises database errors.
        """
        if self._background is not None:
            if not self._background.done():
                return False
            self._use_background()
            return True
        if time.monotonic() < self._scan_at:
            return False
        scan = partial(self._scanner.scan, runnable(), new_round=new_round)
        self.round += self._scan.complete or new_round
        if self._scan.took_s > _BACKGROUND_S:
            self._background = _in_background(scan)
            return False
        self._use(scan())
        return True

    def discard(self) -> None:
        """Make the next refresh see what is due now, and not what an earlier scan found."""
        if self._background is not None:
            self._use_background()
        self._scan_at = float("-inf")
        self._scan = self._scan._replace(took_s=0.0)

    def continue_round(self, *, found: bool) -> float | None:
        """Make the next refresh read the next claim groups; return in how many seconds. None if the round is over.

        ``found``: the groups of the last scan yielded jobs; those that it did not list may have more.
        """
        if self._background is not None:
            return _SCAN_EVERY_S[0]
        if not self._scan.complete or (self._scan.crowded and found):
            self._scan_at = float("-inf")
            return 0.0
        return None

    @property
    def due_in_s(self) -> float:
        """Seconds until the next scan."""
        return max(0.0, self._scan_at - time.monotonic())

    def raise_low_water(self, jobs: Sequence[ClaimedJob]) -> None:
        """Make the next claim read each claim group from after the last of these jobs, which are in order."""
        # Not keyed by UUIDs, which Python code hashes.
        last = {(getattr(job.store_id, "int", job.store_id), job.claim_group): job for job in jobs}
        for job in last.values():
            group = group_of(job)
            low = self.low_water.get(group, (0, 0))
            self.low_water[group] = max(low, (round(job.run_at_s * 1_000_000), job.id))

    def _use_background(self) -> None:
        assert self._background is not None  # noqa: S101 - the callers have looked
        scan, self._background = self._background, None
        self._use(scan.result())

    def _use(self, scan: Scan) -> None:
        self._last_took_s, self._scan = self._scan.took_s, scan
        self.low_water = {group.id: (group.first_us, group.first_id - 1) for group in scan.groups}
        least_s, most_s = _SCAN_EVERY_S
        self._scan_at = time.monotonic() + min(most_s, max(least_s, 10 * scan.took_s))


def group_of(job: ClaimedJob) -> tuple[StoreId, int]:
    """Return the id of a job's claim group."""
    return job.store_id or store_key().none, job.claim_group


def _in_background(scan: Callable[[], Scan]) -> Future[Scan]:
    """Run one scan in a thread with its own connection, while the caller continues to claim."""
    future: Future[Scan] = Future()

    def run() -> None:
        try:
            future.set_result(scan())
        except BaseException as error:  # raised by ``result``
            future.set_exception(error)
        finally:
            connections.close_all()

    threading.Thread(target=run, name="salon-jobs-group-scan", daemon=True).start()
    return future
