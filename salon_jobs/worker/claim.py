"""Choice of how to claim the next batch: in due order, or fairly where stores must share or limits apply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import FEW, Leases
from salon_jobs.jobs.limits import Limits, load_limits
from salon_jobs.worker.fair_claim import Claim, FairClaim

# Limits are loaded after a claim, so that a job that wakes an idle process need not wait; before it when twice as old.
_LOAD_LIMITS_EVERY_S: Final = 0.5
# If two claims in due order take longer, they read past many dead rows, which claim groups avoid by a low-water mark. A
# single one may have waited for a processor or the disk, and with groups a worker starts new jobs only after a scan.
_SLOW_S: Final = 0.05


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
        self._tasks = tasks
        self._leases = leases
        self._queues = queues
        # Excluded as paused queues are: by scanning claim groups.
        self._scans_groups = bool(excluded)
        self._limits = Limits({})
        self._limits_loaded_at = float("-inf")
        self._fair_claim = FairClaim(leases, queues, excluded=excluded, tasks=tasks)
        self._is_fair = self._was_slow = False

    def claim(self, room: int, *, scans_again: bool = False) -> Claim:
        """Claim up to ``room`` jobs. Raises database errors.

        With ``scans_again``, of those due now instead of at the last scan of claim groups.
        """
        began = time.monotonic()
        if scans_again:
            self._fair_claim.discard_scan()
        self._load_limits(2 * _LOAD_LIMITS_EVERY_S)
        if self._limits or self._is_fair or self._scans_groups:
            claim = self._fair_claim.claim(room, self._limits)
            self._is_fair = claim.again_in_s is not None or self._fair_claim.is_slow
            return claim
        claim_due = partial(self._leases.claim_due, self._tasks(), queues=self._queues)
        # A few at first, since usually a single job woke an idle process.
        jobs = claim_due(min(room, FEW))
        if len(jobs) == FEW < room:
            jobs += claim_due(room - len(jobs))
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
