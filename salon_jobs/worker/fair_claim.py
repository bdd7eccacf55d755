"""Fair claims: the stores share each batch equally, claim group by claim group, and limits hold."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from django.db import transaction

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.records import ClaimedJob, StoreId
from salon_jobs.db.statements import StatementRefused, hot
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import ClaimFailed, Leases
from salon_jobs.jobs.limits import Limits, count_by_scope
from salon_jobs.process.loop import Outage
from salon_jobs.worker.group_scanner import ClaimFilter, ClaimGroup, GroupScanner, Scan, in_background

GROUPS_PER_CLAIM: Final = 256
# A scan is used for ten times as long as it took, within these bounds. The next one finds new groups, and jobs that
# were committed late, which sort before those already claimed from their group.
_SCAN_EVERY_S: Final = (0.05, 3.0)
# If a scan takes longer, behind dead rows, the next one runs in the background.
_BACKGROUND_S: Final = 0.1
# When a limit is full, retry after 25 ms, doubling to 250 ms: nothing announces the end of another process's job. When
# a job of this process ends, or when a rate allows the next job, retry at once, but after 25 ms at the earliest.
LIMIT_WAIT_S: Final = (0.025, 0.25)


class Claim(NamedTuple):
    """Claimed jobs in claim order, and in how many seconds to claim again; None: when woken, or at the next poll.

    ``throttled``: a limit was full, so the end of a job may allow the next one.
    """

    jobs: list[ClaimedJob]
    again_in_s: float | None
    throttled: bool = False

    def beside(self, other: Claim) -> Claim:
        """Return what this claim and that of other tasks say together."""
        waits_s = [claim.again_in_s for claim in (self, other) if claim.again_in_s is not None]
        return Claim([*self.jobs, *other.jobs], min(waits_s, default=None), self.throttled or other.throttled)


class Quota(NamedTuple):
    """Number of jobs that one claim may take from a claim group, and from its store."""

    group: ClaimGroup
    jobs: int
    store_jobs: int


# Where to continue reading each claim group: instant (microseconds since 1970) and id of the job last claimed from it.
LowWater = Mapping[tuple[StoreId, int], tuple[int, int]]
_FROM_THE_START: Final = (-62_135_510_400_000_000, 0)  # 0001-01-02, the earliest instant a job can have


class FairClaim:
    """Claims of one process by claim group. Not thread-safe."""

    def __init__(
        self,
        leases: Leases,
        queues: Sequence[str] | None,
        *,
        excluded: Sequence[str] = (),
        tasks: Callable[[], list[str]] = registry.task_names,
    ) -> None:
        self._leases = leases
        self._tasks = tasks
        self._excluded = list(excluded)
        self._queues = None if queues is None else list(queues)
        self._limits = Limits({})
        self._scanner = GroupScanner(using=leases.using)
        self._scan = Scan((), complete=True, took_s=0.0)
        self._scan_at = float("-inf")
        self._last_took_s = 0.0
        self._background_scan: Future[Scan] | None = None
        self._low_water: dict[tuple[StoreId, int], tuple[int, int]] = {}
        # Whether this round of the stores has yielded jobs, or found a limit full.
        self._fruitful = self._throttled = False
        self._limit_wait_s = LIMIT_WAIT_S[0]
        self._refusals = Outage("claim", using=leases.using)

    @property
    def is_slow(self) -> bool:
        """Whether dead rows make scans slow, one after the other, and would make a claim in due order slow too."""
        return 10 * min(self._scan.took_s, self._last_took_s) > _SCAN_EVERY_S[0]

    def claim(self, room: int, limits: Limits) -> Claim:
        """Claim up to ``room`` jobs. ``again_in_s`` is None once no claim group has more. Raises database errors."""
        self._limits = limits
        is_new_scan = self._refresh_scan()
        groups = [group for group in self._scan.groups if limits.allow(group.scopes)]
        # The first may take what is left of a quota or a limit; shuffle, so that it is not always the same group.
        random.shuffle(groups)
        limited = {scope for group in groups for scope in limits.counted(group.scopes)}
        token_in_s = float("inf")
        if limited:
            claim = partial(self._claim_within, limited, groups, room)
            try:
                jobs, quotas, token_in_s = claim()
            except ClaimFailed as failed:
                self._leases.leave_out(failed)
                jobs, quotas, token_in_s = claim()
            self._throttled |= len(quotas) < len(groups) or any(
                quota.jobs < quota.store_jobs and limits.counted(quota.group.scopes) for quota in quotas
            )
        else:
            quotas = share_out(groups, room, {}, lambda _: ())
            jobs = claim_groups(self._leases, quotas, room, self._low_water) if quotas else []
        # The jobs of a single group come in order, so the last one is enough.
        self._raise_low_water(jobs if len(quotas) > 1 else jobs[-1:])
        self._fruitful |= bool(jobs)
        if jobs:
            self._limit_wait_s = LIMIT_WAIT_S[0]
        if _has_more(jobs, quotas, room):
            return Claim(jobs, again_in_s=0.0)
        if self._background_scan is not None:
            return Claim(jobs, again_in_s=_SCAN_EVERY_S[0])
        if not self._scan.complete:
            self._scan_at = float("-inf")
            return Claim(jobs, again_in_s=0.0)
        if self._throttled:
            again_in_s = min(self._limit_wait_s, max(LIMIT_WAIT_S[0], token_in_s))
            self._limit_wait_s = min(LIMIT_WAIT_S[1], 2 * self._limit_wait_s)
            return Claim(jobs, again_in_s, throttled=True)
        self._limit_wait_s = LIMIT_WAIT_S[0]
        return Claim(jobs, again_in_s=None if is_new_scan else max(0.0, self._scan_at - time.monotonic()))

    def discard_scan(self) -> None:
        """Have the next claim see what is due now, not what an earlier scan found."""
        if self._background_scan is not None:
            self._use_background_scan()
        self._scan_at = float("-inf")
        self._scan = self._scan._replace(took_s=0.0)

    def _refresh_scan(self) -> bool:
        """Scan again if it is time to, in the background if that is slow; return whether the scan is new."""
        if self._background_scan is not None:
            if not self._background_scan.done():
                return False
            self._use_background_scan()
            return True
        if time.monotonic() < self._scan_at:
            return False
        scan = partial(self._scanner.scan, self._filter(), new_round=self._fruitful)
        if self._scan.complete or self._fruitful:
            # The last round of the stores is over or yielded jobs: begin another.
            self._fruitful = self._throttled = False
        if self._scan.took_s > _BACKGROUND_S:
            self._background_scan = in_background(scan)
            return False
        self._use(scan())
        return True

    def _use_background_scan(self) -> None:
        assert self._background_scan is not None  # noqa: S101 - the callers have looked
        scan, self._background_scan = self._background_scan, None
        self._use(scan.result())

    def _use(self, scan: Scan) -> None:
        self._last_took_s, self._scan = self._scan.took_s, scan
        self._low_water = {group.id: (group.first_us, group.first_id - 1) for group in scan.groups}
        least_s, most_s = _SCAN_EVERY_S
        self._scan_at = time.monotonic() + min(most_s, max(least_s, 10 * scan.took_s))

    def _filter(self) -> ClaimFilter:
        paused_tasks = set(self._limits.forbidden("task"))
        return ClaimFilter(
            tasks=[name for name in self._tasks() if name not in paused_tasks],
            queues=self._queues,
            paused_queues=[*self._limits.forbidden("queue"), *self._excluded],
            paused_stores=self._limits.forbidden("store"),
        )

    def _claim_within(
        self, limited: set[str], groups: list[ClaimGroup], room: int
    ) -> tuple[list[ClaimedJob], list[Quota], float]:
        """Claim within limited scopes; return also the quotas, and the seconds until a rate allows another job."""
        with transaction.atomic(using=self._leases.using):
            # There may be any number of keys; lock only those of the groups chosen.
            keys = {scope for scope in limited if scope.startswith("key:")}
            capacity, tokens = self._capacity(lock_scopes(limited - keys, using=self._leases.using) | keys)
            # A scope that is full, or locked by another process, takes no slot from claim groups that may run.
            runnable = self._with_capacity(groups, capacity)
            if keys:
                runnable = choose(runnable)
                wanted = keys.intersection(scope for group in runnable for scope in group.scopes)
                of_keys, key_tokens = self._capacity(lock_scopes(wanted, using=self._leases.using))
                tokens |= key_tokens
                capacity = {scope: of_keys.get(scope, 0) if scope in keys else left for scope, left in capacity.items()}
                runnable = self._with_capacity(runnable, capacity)
            quotas = share_out(runnable, room, capacity, self._limits.counted)
            jobs = claim_groups(self._leases, quotas, room, self._low_water) if quotas else []
            if tokens:
                scopes = {quota.group.id: quota.group.scopes for quota in quotas}
                started = Counter(scope for job in jobs if not job.expired for scope in scopes[_group_of(job)])
                for scope in sorted(tokens.keys() & started.keys()):
                    spent = {"scope": scope, "spent_s": started[scope] / (self._limits[scope].rate or 1)}
                    hot("spend_tokens", spent, using=self._leases.using)
        waits_s = [(1 - left) / (self._limits[scope].rate or 1) for scope, left in tokens.items() if left < 1]
        return jobs, quotas, min(waits_s, default=float("inf"))

    def _with_capacity(self, groups: Sequence[ClaimGroup], capacity: Mapping[str, int]) -> list[ClaimGroup]:
        return [
            group for group in groups if all(capacity.get(scope, 0) > 0 for scope in self._limits.counted(group.scopes))
        ]

    def _capacity(self, scopes: set[str]) -> tuple[dict[str, int], dict[str, float]]:
        """Return how many more jobs may start in each scope, and the tokens of those with a rate."""
        using = self._leases.using
        rated = [scope for scope in scopes if self._limits[scope].rate is not None]
        tokens = self._read_tokens(rated) if rated else {}
        is_counted = any(self._limits[scope].max_concurrency is not None for scope in scopes)
        running: Mapping[str, int] = count_by_scope(hot("running_counts", {}, using=using)) if is_counted else {}
        capacity: dict[str, int] = {}
        for scope in scopes:
            most = self._limits[scope].max_concurrency
            free = 2**31 if most is None else max(0, most - running.get(scope, 0))
            capacity[scope] = min(free, int(tokens[scope])) if scope in tokens else free
        return capacity, tokens

    def _read_tokens(self, scopes: list[str]) -> dict[str, float]:
        """Return the tokens of each rate; a rate that cannot be sent to the server has none, and stops no other."""
        rates, bursts = ([getattr(self._limits[scope], name) for scope in scopes] for name in ("rate", "bucket"))
        buckets = {"scopes": scopes, "rates": rates, "bursts": bursts}
        try:
            return dict(hot("read_tokens", buckets, using=self._leases.using))
        except StatementRefused as error:
            if len(scopes) == 1:
                tokens = {scopes[0]: 0.0}
            else:
                tokens = {name: left for scope in scopes for name, left in self._read_tokens([scope]).items()}
            self._refusals.lost(error, scope=scopes[0])
            return tokens

    def _raise_low_water(self, jobs: Sequence[ClaimedJob]) -> None:
        """Make the next claim read each claim group from after the last job claimed; its jobs come in order."""
        # Not keyed by UUIDs, whose hash is computed in Python.
        last = {(getattr(job.store_id, "int", job.store_id), job.claim_group): job for job in jobs}
        for job in last.values():
            low = self._low_water.get(_group_of(job), (0, 0))
            self._low_water[_group_of(job)] = max(low, (round(job.run_at_s * 1_000_000), job.id))


def _group_of(job: ClaimedJob) -> tuple[StoreId, int]:
    return job.store_id or store_key().none, job.claim_group


def _has_more(jobs: Sequence[ClaimedJob], quotas: Sequence[Quota], room: int) -> bool:
    """Return whether a store yielded its full quota, so that it may have more."""
    if len(jobs) >= room:
        return True
    by_store = Counter(job.store_id or store_key().none for job in jobs)
    return any(by_store[quota.group.store] >= quota.store_jobs for quota in quotas)


def claim_groups(leases: Leases, quotas: Sequence[Quota], room: int, low_water: LowWater) -> list[ClaimedJob]:
    """Claim up to ``room`` due jobs by quota, in claim order. A process declared dead gets none."""
    lows = [low_water.get(quota.group.id, _FROM_THE_START) for quota in quotas]
    each_store = {quota.group.store: quota.store_jobs for quota in quotas}
    parameters = {
        "process_id": leases.process_id,
        "room": room,
        "clock": time.monotonic(),
        "stores": [quota.group.store for quota in quotas],
        "numbers": [quota.group.number for quota in quotas],
        "quotas": [quota.jobs for quota in quotas],
        "keys": [quota.group.concurrency_key for quota in quotas],
        "lows_us": [us for us, _ in lows],
        "low_ids": [job_id for _, job_id in lows],
        "each_store": list(each_store),
        "store_quotas": list(each_store.values()),
    }
    return leases.claim("claim_groups", parameters)


def lock_scopes(scopes: Iterable[str], *, using: str) -> set[str]:
    """Lock these scopes for claiming until the transaction ends; return those not locked by others."""
    names = sorted(scopes)
    return {row[0] for row in hot("lock_scopes", {"scopes": names}, using=using)} if names else set()


def choose(groups: Sequence[ClaimGroup]) -> list[ClaimGroup]:
    """Choose as many claim groups as one claim reads: equally many per store, by priority within a store."""
    by_store = [list(of_store) for _, of_store in groupby(sorted(groups, key=_store_of), key=_store_of)]
    most = max(1, GROUPS_PER_CLAIM // max(1, len(by_store)))
    return [group for of_store in by_store for group in sorted(of_store, key=attrgetter("priority"))[:most]]


_store_of = attrgetter("store")


def share_out(
    groups: Sequence[ClaimGroup], room: int, capacity: dict[str, int], counted: Callable[[Sequence[str]], Sequence[str]]
) -> list[Quota]:
    """Share a batch equally among the stores of ``groups``, by priority within a store, all within ``capacity``.

    ``capacity`` is how many more jobs may run in each limited scope; what a quota may take is reserved there. Claim
    groups that compete for a scope share it equally.
    """
    chosen = choose(groups)
    store_jobs = -(-room // max(1, len({group.store for group in chosen})))
    competitors = Counter(scope for group in chosen for scope in counted(group.scopes))
    quotas: list[Quota] = []
    for group in chosen:
        jobs = store_jobs
        scopes = counted(group.scopes)
        for scope in scopes:
            jobs = min(jobs, -(-capacity[scope] // competitors[scope]))
            competitors[scope] -= 1
        if jobs > 0:
            quotas.append(Quota(group, jobs, store_jobs))
            for scope in scopes:
                capacity[scope] -= jobs
    return quotas
