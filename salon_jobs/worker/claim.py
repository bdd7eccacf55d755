"""Claims of one process: in order of due time; or by claim group, where stores must share or limits apply."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from django.db import transaction

from salon_jobs.core.errors import PayloadInvalid
from salon_jobs.core.records import ClaimedJob, StoreId
from salon_jobs.db.statements import StatementRefused, run_raw
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import ClaimFailed, Leases
from salon_jobs.jobs.limits import Limits, count_by_scope, load_limits
from salon_jobs.process.loop import Outage
from salon_jobs.worker.executor import why_expired
from salon_jobs.worker.group_scanner import ClaimFilter, ClaimGroup, ScanSchedule, group_of
from salon_jobs.worker.quotas import Quota, choose, has_more, plan

# Load limits after a claim, so that a job that wakes an idle process need not wait; before it when twice as old.
_LOAD_LIMITS_EVERY_S: Final = 0.5
# If two claims in due order take longer, they read past many dead rows, which claim groups avoid by a low-water mark. A
# single slow claim may have waited for a processor or the disk, and with groups a worker starts new jobs only after a
# scan.
_SLOW_S: Final = 0.05
# When a limit is full, retry after 25 ms, doubling to 250 ms: no wake-up announces the end of another process's job.
# When a job of this process ends, or when a rate allows the next job, retry at once, but after 25 ms at the earliest.
LIMIT_WAIT_S: Final = (0.025, 0.25)


class Claim(NamedTuple):
    """Claimed jobs in claim order, and the seconds until the next claim; None: at a wake-up or the next poll.

    ``throttled``: a limit was full, so the end of a job may allow the next one.
    """

    jobs: list[ClaimedJob]
    again_in_s: float | None
    throttled: bool = False

    def merged_with(self, other: Claim) -> Claim:
        """Merge with the claim of the other source."""
        waits_s = [claim.again_in_s for claim in (self, other) if claim.again_in_s is not None]
        return Claim([*self.jobs, *other.jobs], min(waits_s, default=None), self.throttled or other.throttled)


class Claimer:
    """Claimer of jobs for one process. Not thread-safe.

    Without a backlog and without limits, everything due is claimed in due order, by one statement. With a backlog, the
    stores share each batch equally, and limits are enforced by counting under a lock per limited scope.
    """

    def __init__(
        self,
        leases: Leases,
        queues: Sequence[str] | None,
        *,
        excluded: Sequence[str] = (),
        tasks: Callable[[], list[str]] = registry.task_names,
    ) -> None:
        """Prepare to claim jobs of these tasks."""
        self._leases, self._tasks = leases, tasks
        self._queues = None if queues is None else list(queues)
        # Tasks are excluded as paused queues are: by scanning claim groups.
        self._excluded = list(excluded)
        self._limits = Limits({})
        self._limits_loaded_at = float("-inf")
        self._scans = ScanSchedule(using=leases.using)
        # Whether to claim by claim groups next time, and whether the last claim in due order was slow.
        self._is_fair = self._was_slow = False
        # Whether this round of the stores has yielded jobs, or found a limit full.
        self._round, self._fruitful, self._throttled = 0, False, False
        self._limit_wait_s = LIMIT_WAIT_S[0]
        self._refusals = Outage("claim", using=leases.using)

    def claim(self, room: int, *, scans_again: bool = False) -> Claim:
        """Claim up to ``room`` jobs. Raises database errors.

        ``scans_again`` claims what is due now, and not what was due at the last scan of claim groups.
        """
        began = time.monotonic()
        if scans_again:
            self._scans.discard()
        self._load_limits(2 * _LOAD_LIMITS_EVERY_S)
        if self._limits or self._is_fair or self._excluded:
            claim = self.claim_fairly(room)
            self._is_fair = claim.again_in_s is not None or self._scans.is_slow
            return claim
        jobs = self._leases.claim_due(self._tasks(), room, queues=self._queues)
        was_slow, self._was_slow = self._was_slow, time.monotonic() - began > _SLOW_S
        self._is_fair = len(jobs) == room or (was_slow and self._was_slow)
        return Claim(jobs, again_in_s=0.0 if self._is_fair else None)

    @property
    def limits(self) -> Limits:
        """The limits in effect, as last loaded."""
        return self._limits

    def refresh_limits(self) -> None:
        """Load the limits again when they are half a second old. Call this after each claim. Raises database errors."""
        self._load_limits(_LOAD_LIMITS_EVERY_S)

    def _load_limits(self, older_than_s: float) -> None:
        now = time.monotonic()
        if now - self._limits_loaded_at >= older_than_s:
            self._limits, self._limits_loaded_at = load_limits(using=self._leases.using), now

    def claim_fairly(self, room: int) -> Claim:
        """Claim up to ``room`` jobs by claim group, within the limits in effect: the stores share them equally.

        ``again_in_s`` is None once no claim group has more. Raises database errors.
        """
        limits = self._limits
        is_new_scan = self._scans.refresh(self._filter, new_round=self._fruitful)
        if self._round != self._scans.round:
            self._round, self._fruitful, self._throttled = self._scans.round, False, False
        groups = [group for group in self._scans.groups if limits.allow(group.scopes)]
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
            quotas = plan(groups, room, {}, lambda _: ())
            jobs = claim_groups(self._leases, quotas, room, self._scans.low_water) if quotas else []
        # The jobs of a single group come in order, so its last job is enough.
        self._scans.raise_low_water(jobs if len(quotas) > 1 else jobs[-1:])
        self._fruitful |= bool(jobs)
        if jobs:
            self._limit_wait_s = LIMIT_WAIT_S[0]
        if has_more(jobs, quotas, room):
            return Claim(jobs, again_in_s=0.0)
        if (again_in_s := self._scans.continue_round(found=bool(jobs))) is not None:
            return Claim(jobs, again_in_s)
        if self._throttled:
            again_in_s = min(self._limit_wait_s, max(LIMIT_WAIT_S[0], token_in_s))
            self._limit_wait_s = min(LIMIT_WAIT_S[1], 2 * self._limit_wait_s)
            return Claim(jobs, again_in_s, throttled=True)
        self._limit_wait_s = LIMIT_WAIT_S[0]
        return Claim(jobs, again_in_s=None if is_new_scan else self._scans.due_in_s)

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
            # There may be any number of keys; lock only those of the chosen groups.
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
            quotas = plan(runnable, room, capacity, self._limits.counted)
            jobs = claim_groups(self._leases, quotas, room, self._scans.low_water) if quotas else []
            if tokens:
                scopes = {quota.group.id: quota.group.scopes for quota in quotas}
                started = Counter[str]()
                for job in jobs:
                    if (rated := tokens.keys() & scopes[group_of(job)]) and _starts(job):
                        started.update(rated)
                for scope in sorted(started):
                    spent = {"scope": scope, "spent_s": started[scope] / (self._limits[scope].rate or 1)}
                    run_raw("spend_tokens", spent, using=self._leases.using)
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
        running: Mapping[str, int] = count_by_scope(run_raw("running_counts", {}, using=using)) if is_counted else {}
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
            return dict(run_raw("read_tokens", buckets, using=self._leases.using))
        except StatementRefused as error:
            if len(scopes) == 1:
                tokens = {scopes[0]: 0.0}
            else:
                tokens = {name: left for scope in scopes for name, left in self._read_tokens([scope]).items()}
            self._refusals.lost(error, scope=scopes[0])
            return tokens


def _starts(job: ClaimedJob) -> bool:
    """Return whether a claimed job will start: not if it waited too long, or its payload does not fit."""
    task = registry.get_declaration(job.task)
    if why_expired(task, job, time.monotonic() - job.due_at) is not None:
        return False
    if job.payload:  # else it is too large for a claim to carry
        try:
            task.payload.decode(job.payload, job.store_id)
        except PayloadInvalid:
            return False
    return True


# Where to continue reading each claim group: instant (microseconds since 1970) and id of the job last claimed from it.
LowWater = Mapping[tuple[StoreId, int], tuple[int, int]]
_FROM_THE_START: Final = (-62_135_510_400_000_000, 0)  # 0001-01-02, the earliest instant a job can have


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
    """Lock these scopes for claiming until the transaction ends; skip those of others, and return the locked ones."""
    names = sorted(scopes)
    return {row[0] for row in run_raw("lock_scopes", {"scopes": names}, using=using)} if names else set()
