"""Distribution of partitions among live relays: one relay owns each, and another takes over when it dies or leaves."""

from __future__ import annotations

import time
from collections.abc import Callable

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import PARTITIONS
from salon_jobs.outbox import queries
from salon_jobs.outbox.queries import PartitionState

_BEATS = 5
# Share of the ownership time that an owner leaves unused, so that nothing it began arrives after its successor's
# messages.
_MARGIN = 0.3


class Ownership:
    """Partitions that this relay owns: it sends heartbeats, takes free or abandoned ones, and gives back its excess.

    Clocks of different machines are never compared: a relay takes another's partition only after seeing it unchanged
    for PROCESS_SILENT_AFTER on its own monotonic clock, and an owner keeps its own without a heartbeat for less than
    that. A row that a promoted server has from an earlier time is another relay's, unless this relay owned the
    partition at that time and ever since.
    """

    def __init__(self, owner: int, *, using: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._owner = owner
        self._using = using
        self._clock = clock
        self._unchanged_since: dict[PartitionState, float] = {}
        self._ours_until = float("-inf")
        self._began = self._beat_at = float("-inf")
        self._epochs: dict[int, int] = {}
        # Epochs that this relay may have begun, since the answer was lost.
        self._begun: dict[int, int] = {}
        # Owned, but to be given back as soon as none of their messages is in flight.
        self.leaving: frozenset[int] = frozenset()
        self.relays = 0

    @property
    def owned(self) -> frozenset[int]:
        """Owned partitions, including those that are leaving."""
        return frozenset(self._epochs)

    @property
    def staying(self) -> frozenset[int]:
        """Owned partitions whose messages are read: those that are not leaving."""
        return self.owned - self.leaving

    @property
    def holds(self) -> bool:
        """Whether the owned partitions are certainly ours at this moment."""
        return self._clock() < self._ours_until

    @property
    def due_in_s(self) -> float:
        return max(0.0, self._beat_at - self._clock())

    def beat(self) -> frozenset[int]:
        """Send a heartbeat, take and release partitions; return those lost to others. Raises database errors.

        A partition that was lost and taken again counts, because another relay had it. Call ``confirm`` afterwards.
        """
        silent_after_s = conf.process_silent_after.total_seconds()
        self._began = self._clock()
        known = {**self._epochs, **self._begun}
        queries.beat_partitions(known, owner=self._owner, using=self._using)
        states, relays = queries.partitions(using=self._using)
        if len(states) < PARTITIONS:  # no relay has run here, or its rows were lost or deleted
            queries.make_partitions(using=self._using)
            states, relays = queries.partitions(using=self._using)
        # Taken after reading: a heartbeat that arrived during the query must not look as old as the query.
        now = self._clock()
        since = self._unchanged_since = {state: self._unchanged_since.get(state, now) for state in states}
        self.relays = max(1, relays)
        epochs = {
            state.partition: state.epoch
            for state in states
            if state.owner == self._owner and state.epoch <= known.get(state.partition, -1)
        }
        # A relay that was frozen or cut off finds its rows unchanged, unless another relay took them.
        lost = frozenset(p for p, epoch in self._epochs.items() if epochs.get(p) != epoch)
        share = -(-PARTITIONS // self.relays)
        others = [state for state in states if state.partition not in epochs]
        free = [state for state in others if state.owner is None or now - since[state] >= silent_after_s]
        if free and len(epochs) < share:
            wanted = free[: share - len(epochs)]
            self._begun = {state.partition: state.epoch + 1 for state in wanted}
            taken = queries.take_partitions(wanted, owner=self._owner, using=self._using)
            epochs |= {state.partition: state.epoch + 1 for state in wanted if state.partition in taken}
        self._epochs, self._begun = epochs, {}
        excess = len(epochs) - share
        staying = sorted(epochs, key=lambda partition: (partition in self.leaving, partition))
        self.leaving = frozenset(staying[-excess:]) if excess > 0 else frozenset()
        self._beat_at = self._began + silent_after_s / _BEATS
        return lost

    def confirm(self) -> None:
        """Confirm the owned partitions, counted from the last heartbeat. Call after stopping the work on lost ones."""
        self._ours_until = self._began + conf.process_silent_after.total_seconds() * (1 - _MARGIN)

    def suspend(self) -> None:
        """Suspend ownership until the next heartbeat, which is due: the database was lost, and may be another now.

        Other relays get their full time again to show that they live.
        """
        self._unchanged_since = {}
        self._beat_at = self._ours_until = float("-inf")

    def release(self, partitions: frozenset[int]) -> None:
        """Give back partitions that have nothing in flight. Raises database errors."""
        queries.release_partitions(partitions, owner=self._owner, using=self._using)
        self._epochs = {p: epoch for p, epoch in self._epochs.items() if p not in partitions}
        self.leaving -= partitions
