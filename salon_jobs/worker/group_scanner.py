"""Claim groups, scanned store by store."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from django.db import connections

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.records import StoreId
from salon_jobs.db.statements import hot
from salon_jobs.jobs.limits import scopes_of

STORES_PER_SCAN: Final = 64
PREFIXES_PER_STORE: Final = 32
GROUPS_PER_PREFIX: Final = 32
FIRST_PREFIX: Final = -(2**31)
# A scan ends after this many seconds, or once it has found STORES_PER_SCAN stores.
_SCAN_S: Final = 0.02


class ClaimGroup(NamedTuple):
    """One claim group, in the column order of ``list_groups.sql``; ``store`` is the key of none for system tasks.

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
        """What it shares with the claim groups that differ only in their keys."""
        return self.store, self.number >> 32

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes to which a limit can apply, as ``kind:name``."""
        return scopes_of(self.queue, self.task, self.store, self.concurrency_key)


class ClaimFilter(NamedTuple):
    """What a process may run now: these tasks and queues (None: all), except what is paused."""

    tasks: list[str]
    queues: list[str] | None = None
    paused_queues: Sequence[str] = []
    paused_stores: Sequence[str] = []


class ScanPage(NamedTuple):
    """Claim groups listed by one query, how many stores it covers, and the last of them."""

    groups: list[ClaimGroup]
    stores: int
    last: StoreId | None


class Scan(NamedTuple):
    """Result of one scan: claim groups with due jobs, whether it covered all remaining stores, and its duration."""

    groups: Sequence[ClaimGroup]
    complete: bool
    took_s: float


def list_groups(
    after: StoreId | None, runnable: ClaimFilter, *, using: str, prefix: int = FIRST_PREFIX, key: int = 0
) -> ScanPage:
    """List some claim groups of each of the next stores, from a given prefix and, within it, key. Role: worker."""
    parameters = list_parameters(after, runnable, prefix=prefix, key=key)
    rows = hot("list_groups", parameters, jit=False, using=using)
    groups = [ClaimGroup(*row) for row in rows if row[1] is not None]
    return ScanPage(groups, len({row[0] for row in rows}), rows[-1][0] if rows else None)


def list_parameters(
    after: StoreId | None, runnable: ClaimFilter, *, prefix: int = FIRST_PREFIX, key: int = 0
) -> dict[str, Any]:
    return {
        "after": after,
        "stores": STORES_PER_SCAN,
        "prefixes": PREFIXES_PER_STORE,
        "groups": GROUPS_PER_PREFIX,
        "prefix": prefix,
        "key": key,
        **runnable._asdict(),
    }


class GroupScanner:
    """Round-robin scanner of the stores for one process, a few at a time. Not thread-safe."""

    def __init__(self, *, using: str) -> None:
        self._using = using
        # Each process starts its round at a different store.
        self._after: StoreId | None = store_key().somewhere()
        self._is_crowded = False
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
        # If a store is crowded, every other scan begins at a random point of its groups, so that none waits forever.
        prefix, key = FIRST_PREFIX, 0
        if inside := self._is_crowded:
            prefix, key = random.randrange(-(2**31), 2**31), random.randrange(2**32)  # noqa: S311 - no secret
        self._is_crowded = False
        if self._is_complete or new_round:
            self._is_complete = False
            self._began_at, self._wrapped = self._after, self._after is None
        over = False
        while not over:
            page = list_groups(self._after, runnable, using=self._using, prefix=prefix, key=key)
            self._is_crowded |= not inside and _is_crowded(page.groups)
            due.update((group.id, group) for group in page.groups if group.due)
            self._after = page.last
            if page.stores < STORES_PER_SCAN:
                self._after = None
                over, self._wrapped = self._wrapped, True
            elif self._wrapped and self._began_at is not None and page.last is not None:
                over = page.last >= self._began_at
            self._is_complete = over and not inside
            if len({store_id for store_id, _ in due}) >= STORES_PER_SCAN or time.monotonic() - began > _SCAN_S:
                break
        return Scan(list(due.values()), self._is_complete, time.monotonic() - began)


def in_background(scan: Callable[[], Scan]) -> Future[Scan]:
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


def _is_crowded(groups: Sequence[ClaimGroup]) -> bool:
    """Return whether a store has more prefixes, or a prefix more claim groups, than a scan lists."""
    per_prefix = Counter(group.prefix for group in groups)
    per_store = Counter(store_id for store_id, _ in per_prefix)
    return GROUPS_PER_PREFIX in per_prefix.values() or PREFIXES_PER_STORE in per_store.values()
