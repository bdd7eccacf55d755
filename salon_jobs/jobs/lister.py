"""Looks for lanes that have due jobs, round after round of the stores; beside the claims where that takes long."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.db import connections

from salon_jobs.jobs import lanes
from salon_jobs.jobs.lanes import Lane, Runnable

# So long, and so many stores, does one look for lanes go on.
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Listed:
    """Is what one look found: lanes with due jobs, whether that was the rest of the stores, and how long it took."""

    lanes: Sequence[Lane]
    complete: bool
    took_s: float


class Lister:
    """Goes round the stores for one process, some at each look. Not for several threads at once."""

    def __init__(self) -> None:
        # Each process begins its round of the stores at another one.
        self._after: UUID | None = UUID(int=random.getrandbits(128))
        self._crowded = False
        self._complete = True
        # Where the round of the stores began, and whether it passed the last one.
        self._began_at: UUID | None = self._after
        self._wrapped = False

    def look(self, runnable: Runnable, *, afresh: bool) -> Listed:
        """Look from where the last look ended, for a while; ``afresh`` begins another round. Raises database errors."""
        began = time.monotonic()
        found: dict[tuple[UUID, int], Lane] = {}
        # Every other look begins inside a crowded store's lanes at random, so that none of them waits for ever.
        group, key = lanes.FIRST_GROUP, 0
        if inside := self._crowded:
            group, key = random.randrange(-(2**31), 2**31), random.randrange(2**32)  # noqa: S311 - no secret
        self._crowded = False
        if self._complete or afresh:
            self._complete = False
            self._began_at, self._wrapped = self._after, self._after is None
        over = False
        while not over:
            look = lanes.list_lanes(self._after, runnable, group=group, key=key)
            self._crowded |= not inside and _crowds(look.lanes)
            found.update(((lane.store, lane.number), lane) for lane in look.lanes if lane.due)
            self._after = look.last
            if look.stores < lanes.STORES_A_LOOK:
                self._after = None
                over, self._wrapped = self._wrapped, True
            elif self._wrapped and self._began_at is not None and look.last is not None:
                over = look.last >= self._began_at
            self._complete = over and not inside
            if len({store_id for store_id, _ in found}) >= lanes.STORES_A_LOOK or time.monotonic() - began > _LOOK_S:
                break
        return Listed(list(found.values()), self._complete, time.monotonic() - began)


def aside(look: Callable[[], Listed]) -> Future[Listed]:
    """Run one look on a thread, with a connection of its own, while the caller goes on claiming."""
    listed: Future[Listed] = Future()

    def run() -> None:
        try:
            listed.set_result(look())
        except BaseException as error:  # whoever asks for the result gets it
            listed.set_exception(error)
        finally:
            connections.close_all()

    threading.Thread(target=run, name="salon-jobs-lister", daemon=True).start()
    return listed


def _crowds(listed: Sequence[Lane]) -> bool:
    """Tell whether a store has more groups, or a group more lanes, than a look lists."""
    per_group = Counter(lane.group for lane in listed)
    per_store = Counter(store_id for store_id, _ in per_group)
    return lanes.LANES_A_GROUP in per_group.values() or lanes.GROUPS_A_STORE in per_store.values()
