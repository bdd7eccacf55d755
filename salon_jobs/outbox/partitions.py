"""Shares the partitions among the relays that live: each is one relay's, and handed over when it dies or leaves."""

from __future__ import annotations

import time
from collections.abc import Callable

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import PARTITIONS
from salon_jobs.outbox import queries
from salon_jobs.outbox.queries import PartitionState

_BEATS = 5
# What an owner does not use of its time, so that nothing it began before the end arrives after another one's.
_MARGIN = 0.3


class Ownership:
    """Beats for this relay's partitions, takes what is free or was left, and says for how long they are ours.

    No clocks of two machines are compared: who wants another's partition has itself seen it unchanged for as long as
    the setting OWNERSHIP says, by its own monotonic clock; and an owner trusts its own for less than that.
    """

    def __init__(self, owner: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._owner = owner
        self._clock = clock
        self._seen: dict[int, tuple[PartitionState, float]] = {}
        self._ours_until = float("-inf")
        self._began = self._beat_at = float("-inf")
        self._epochs: dict[int, int] = {}
        self.mine: frozenset[int] = frozenset()
        # Ours, but to be given back as soon as nothing of them is on its way.
        self.leaving: frozenset[int] = frozenset()
        self.relays = 1

    @property
    def holds(self) -> bool:
        """Tell whether what we own is ours for sure, at this moment."""
        return self._clock() < self._ours_until

    @property
    def due_in_s(self) -> float:
        """Return in how many seconds the next beat is due."""
        return max(0.0, self._beat_at - self._clock())

    def beat(self) -> frozenset[int]:
        """Beat, take and let go; returns the partitions that were lost to others. Raises database errors.

        One that was lost and is taken again counts: another relay had it. ``trust`` must follow.
        """
        self._began = self._clock()
        if not self._seen:
            queries.make_partitions()
        queries.beat_partitions(self._owner)
        states, relays = queries.partitions()
        self.relays = max(1, relays)
        epochs = {state.partition: state.epoch for state in states if state.owner == self._owner}
        # A relay that was frozen or cut off for too long finds its rows as it left them, unless another took them.
        lost = frozenset(p for p, epoch in self._epochs.items() if epochs.get(p) != epoch)
        share = -(-PARTITIONS // self.relays)
        takeable = self._takeable(states)
        if takeable and len(epochs) < share:
            wanted = takeable[: share - len(epochs)]
            taken = queries.take_partitions(wanted, owner=self._owner)
            epochs |= {state.partition: state.epoch + 1 for state in wanted if state.partition in taken}
        self._epochs, self.mine = epochs, frozenset(epochs)
        excess = len(epochs) - share
        staying = sorted(epochs, key=lambda partition: (partition in self.leaving, partition))
        self.leaving = frozenset(staying[-excess:]) if excess > 0 else frozenset()
        self._beat_at = self._began + conf.outbox.ownership.total_seconds() / _BEATS
        return lost

    def trust(self) -> None:
        """Hold what we own from now on, counted from the last beat: whoever publishes was told what was lost."""
        self._ours_until = self._began + conf.outbox.ownership.total_seconds() * (1 - _MARGIN)

    def release(self, partitions: frozenset[int]) -> None:
        """Give partitions back of which nothing is on its way any more. Raises database errors."""
        queries.release_partitions(partitions, owner=self._owner)
        self.mine -= partitions
        self._epochs = {p: epoch for p, epoch in self._epochs.items() if p not in partitions}
        self.leaving -= partitions

    def _takeable(self, states: list[PartitionState]) -> list[PartitionState]:
        # Now, after they were read: a beat that came while we asked must not look as old as the question.
        now = self._clock()
        takeable: list[PartitionState] = []
        for state in states:
            before = self._seen.get(state.partition)
            if before is None or before[0] != state:
                self._seen[state.partition] = before = (state, now)
            if state.owner is None or (
                state.owner != self._owner and now - before[1] >= conf.outbox.ownership.total_seconds()
            ):
                takeable.append(state)
        return takeable
