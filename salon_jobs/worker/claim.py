"""Choice of how to claim the next batch: in due order, or by claim group where stores must share or limits apply."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final
from uuid import UUID

from django.db import transaction

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import NO_STORE, ClaimedJob
from salon_jobs.db.statements import execute_hot
from salon_jobs.jobs import queries, registry
from salon_jobs.jobs.limits import Limits, load_limits
from salon_jobs.worker import fair_claim
from salon_jobs.worker.fair_claim import ClaimFilter, ClaimGroup, GroupScanner, Quota, Scan, in_background

# Limits are loaded after a claim, so that a job that wakes an idle process need not wait; before it when twice as old.
_RULES_EVERY_S: Final = 0.5
# A list of claim groups is used for this long, or for ten times as long as it took to make, within these bounds. The
# next list finds new groups, and jobs committed late, which sort before those already claimed from their group.
_LIST_EVERY_S: Final = (0.05, 3.0)
# If a scan takes longer, behind dead rows, the next one runs in the background.
_ASIDE_S: Final = 0.1
# A claim in due order that takes longer is wading through dead rows: claim groups have a low-water mark.
_SLOW_S: Final = 0.05
# When a limit is full, retry after 25 ms, doubling to 250 ms: nothing announces the end of another process's job. When
# a job of this process ends, or when a rate allows the next job, retry at once, but after 25 ms at the earliest.
THROTTLED_S: Final = (0.025, 0.25)


class Claimer:
    """Claimer of jobs for one process. Not thread-safe.

    Without a backlog and without limits, everything due is claimed in due order, by one statement. With a backlog, the
    stores share each batch equally, and limits are enforced by counting under a lock per limited scope.
    """

    def __init__(self, process_id: int, queues: Sequence[str] | None) -> None:
        self._process_id = process_id
        self._queues = queues
        self._limits = Limits({})
        self._rules_read = float("-inf")
        self._by_lanes = False
        self._lanes: Sequence[ClaimGroup] = []
        self._list_again = float("-inf")
        self._took_s = 0.0
        self._lister = GroupScanner()
        self._background_scan: Future[Scan] | None = None
        # Whether the claim groups are those of all stores, and what this round of them has yielded so far.
        self._complete = True
        self._fruitful = self._throttled = False
        # Whether the last claim found a limit full, and how long the next one then waits.
        self.throttled = False
        self._throttled_s = THROTTLED_S[0]
        # When the next rate bucket will hold a whole token, in seconds from the last claim.
        self._token_in_s = float("inf")
        self._low: dict[tuple[UUID, int], tuple[int, int]] = {}
        # Seconds until another claim is worthwhile without a wake-up; 0: at once; None: unknown.
        self.again_s: float | None = None

    def claim(self, room: int) -> list[ClaimedJob]:
        """Claim up to ``room`` jobs; ``again_s`` is when to claim again. Raises database errors."""
        now = time.monotonic()
        self._read_rules(now, 2 * _RULES_EVERY_S)
        if self._limits or self._by_lanes:
            return self._claim_by_lanes(room)
        self.throttled = False
        # A few at first: usually a single job woke an idle process.
        jobs = self._claim_due(min(room, queries.FEW))
        if len(jobs) == queries.FEW < room:
            jobs += self._claim_due(room - len(jobs))
        self._by_lanes = len(jobs) == room or time.monotonic() - now > _SLOW_S
        self.again_s = 0.0 if self._by_lanes else None
        return jobs

    def _claim_due(self, room: int) -> list[ClaimedJob]:
        return queries.claim_due(self._process_id, registry.task_names(), room, queues=self._queues)

    def claim_afresh(self, room: int) -> list[ClaimedJob]:
        """Claim from what is due now, not from a list of claim groups made earlier; otherwise as ``claim``."""
        if self._background_scan is not None:
            self._adopt_background_scan(self._background_scan)
        self._list_again = float("-inf")
        self._took_s = 0.0
        return self.claim(room)

    def follow_rules(self) -> None:
        """Reload the limits when they are half a second old; call this after each claim. Raises database errors."""
        self._read_rules(time.monotonic(), _RULES_EVERY_S)

    def _read_rules(self, now: float, older_than_s: float) -> None:
        if now - self._rules_read >= older_than_s:
            self._limits, self._rules_read = load_limits(), now

    def _claim_by_lanes(self, room: int) -> list[ClaimedJob]:
        fresh = self._list()
        served = [lane for lane in self._lanes if self._limits.allows(lane)]
        # Whichever comes first may take what is left of a quota or a limit: shuffle, so that it is not always the same.
        random.shuffle(served)
        self._token_in_s = float("inf")
        jobs, shares, throttled = self._claim_shares(served, room)
        self._raise_low_water(jobs)
        self._fruitful |= bool(jobs)
        self._throttled |= throttled
        if jobs or not self.throttled:
            self._throttled_s = THROTTLED_S[0]
        if _more(jobs, shares, room):
            self.again_s = 0.0
        elif self._background_scan is not None:
            self.throttled = False
            self.again_s = _LIST_EVERY_S[0]
        elif not self._complete:
            self._list_again = float("-inf")
            self.again_s = 0.0
        elif self._throttled:
            self.throttled = True
            self.again_s = min(self._throttled_s, max(THROTTLED_S[0], self._token_in_s))
            self._throttled_s = min(THROTTLED_S[1], 2 * self._throttled_s)
        elif not fresh:
            self.throttled = False
            self.again_s = max(0.0, self._list_again - time.monotonic())
        else:
            # All claim groups are known and none has more: the plain claim is as fair, unless dead rows make it slow.
            self._by_lanes = 10 * self._took_s > _LIST_EVERY_S[0]
            self.throttled = False
            self.again_s = None
        return jobs

    def _list(self) -> bool:
        """List claim groups if it is time to, in the background if that is slow. Return whether the list is new."""
        if self._background_scan is not None:
            if not self._background_scan.done():
                return False
            self._adopt_background_scan(self._background_scan)
            return True
        if time.monotonic() < self._list_again:
            return False
        look = partial(self._lister.look, self._runnable(), afresh=self._fruitful)
        if self._complete or self._fruitful:
            # The last round of the stores is over or yielded jobs: begin another.
            self._fruitful = self._throttled = False
        if self._took_s > _ASIDE_S:
            self._background_scan = in_background(look)
            return False
        self._adopt(look())
        return True

    def _adopt_background_scan(self, listed: Future[Scan]) -> None:
        self._background_scan = None
        self._adopt(listed.result())

    def _adopt(self, listed: Scan) -> None:
        self._lanes, self._complete, self._took_s = listed.lanes, listed.complete, listed.took_s
        self._low = {(lane.store, lane.number): (lane.first_us, lane.first_id - 1) for lane in listed.lanes}
        least, most = _LIST_EVERY_S
        self._list_again = time.monotonic() + min(most, max(least, 10 * listed.took_s))

    def _runnable(self) -> ClaimFilter:
        forbidden = set(self._limits.forbidden("task"))
        return ClaimFilter(
            tasks=[name for name in registry.task_names() if name not in forbidden],
            queues=self._queues,
            paused_queues=self._limits.forbidden("queue"),
            paused_stores=self._limits.forbidden("store"),
        )

    def _claim_shares(self, served: list[ClaimGroup], room: int) -> tuple[list[ClaimedJob], list[Quota], bool]:
        limited = {scope for lane in served for scope in self._limits.limits_of(lane)}
        if not served:
            return [], [], False
        if not limited:
            shares = fair_claim.share_out(served, room, {}, lambda _: ())
            return fair_claim.claim_groups(self._process_id, shares, room, self._low), shares, False
        with transaction.atomic(using=conf.database):
            # A limit that a task declares for its keys applies to any number of them: these wait until claim groups are
            # chosen.
            keys = {scope for scope in limited if scope.startswith("key:") and self._limits[scope].rate is None}
            capacity, tokens = self._capacity(fair_claim.lock_scopes(limited - keys) | keys)
            # A scope that is full, or locked by another process, takes no slot from claim groups that may run.
            free = self._free(served, capacity)
            if keys:
                free = fair_claim.choose(free)
                wanted = keys.intersection(scope for lane in free for scope in lane.scopes)
                held, _ = self._capacity(fair_claim.lock_scopes(wanted))
                capacity = {scope: held.get(scope, 0) if scope in keys else left for scope, left in capacity.items()}
                free = self._free(free, capacity)
            shares = fair_claim.share_out(free, room, capacity, self._limits.limits_of)
            jobs = fair_claim.claim_groups(self._process_id, shares, room, self._low) if shares else []
            if tokens:
                scopes = {(share.lane.store, share.lane.number): share.lane.scopes for share in shares}
                started = Counter(scope for job in jobs if not job.expired for scope in scopes[_lane_of(job)])
                for scope in tokens.keys() & started.keys():
                    execute_hot("spend_tokens", {"scope": scope, "spent": started[scope]})
        throttled = len(shares) < len(served) or any(
            share.quota < share.store_quota and self._limits.limits_of(share.lane) for share in shares
        )
        return jobs, shares, throttled

    def _free(self, served: Sequence[ClaimGroup], capacity: Mapping[str, int]) -> list[ClaimGroup]:
        return [lane for lane in served if all(capacity.get(scope, 0) > 0 for scope in self._limits.limits_of(lane))]

    def _capacity(self, held: set[str]) -> tuple[dict[str, int], dict[str, float]]:
        """Return how many more jobs may start in each scope, and the tokens of those with a rate."""
        tokens = fair_claim.refill_tokens(scope for scope in held if self._limits[scope].rate is not None)
        counted = any(self._limits[scope].max_concurrency is not None for scope in held)
        running = fair_claim.running_by_scope() if counted else {}
        capacity: dict[str, int] = {}
        for scope in held:
            most = self._limits[scope].max_concurrency
            free = 2**31 if most is None else max(0, most - running.get(scope, 0))
            if scope in tokens and tokens[scope] < 1:
                self._token_in_s = min(self._token_in_s, (1 - tokens[scope]) / (self._limits[scope].rate or 1))
            capacity[scope] = min(free, int(tokens[scope])) if scope in tokens else free
        return capacity, tokens

    def _raise_low_water(self, jobs: Sequence[ClaimedJob]) -> None:
        """Make the next claim read each claim group from after the last job claimed; its jobs come in order."""
        last = {_lane_of(job): (job.run_at_s, job.id) for job in jobs}
        for key, (run_at_s, job_id) in last.items():
            self._low[key] = max(self._low.get(key, (0, 0)), (round(run_at_s * 1_000_000), job_id))


def _lane_of(job: ClaimedJob) -> tuple[UUID, int]:
    return job.store_id or NO_STORE, job.claim_group


def _more(jobs: Sequence[ClaimedJob], shares: Sequence[Quota], room: int) -> bool:
    """Return whether a store yielded its full quota, so that it may have more."""
    if len(jobs) >= room:
        return True
    by_store = Counter(job.store_id or NO_STORE for job in jobs)
    return any(by_store[share.lane.store] >= share.store_quota for share in shares)
