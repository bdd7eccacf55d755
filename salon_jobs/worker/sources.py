"""Sources of jobs to claim: one for a process's threads, one for its event loop; and when each claims again."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import ClaimedJob
from salon_jobs.db.notify import SECOND_POLL
from salon_jobs.jobs import registry
from salon_jobs.worker.claim import LIMIT_WAIT_S, Claim, Claimer

# How often to ask a source for room, if it does not tell when it has some.
ROOM_S: Final = 0.2
# How long to claim a backlog without a break, at most: cancellations may be that late; and the room that it needs.
_FILL_S: Final = 0.2
_FILLS_FROM: Final = 500
# After a wake-up that announces more jobs, how soon to claim again after a claim without jobs, and after another.
_LOOK_AGAIN_S: Final = (0.02, 0.003)
_NOTHING: Final = Claim([], None)


class Want(Enum):
    """State of a source since its last claim; each claim decides anew.

    ========  =================================================  =================================================
    State     The last claim                                     Claims again
    ========  =================================================  =================================================
    WAKE_UP   took all that was due                              on a wake-up, or at the next poll
    INSTANT   set a time: a scan is due, or a full limit may     then, or on a wake-up; if a limit was full, when a
              have room again                                    job ends
    ROOM      was not followed by another, for want of a place   once a job has ended
    MORE      left a backlog, or may have: it filled all places  at once, or once places have been gathered
    ========  =================================================  =================================================
    """

    WAKE_UP = "wake-up"
    INSTANT = "instant"
    ROOM = "room"
    MORE = "more"


@dataclass(slots=True)
class ClaimSource:
    """Tasks that are claimed together, for the places where they run."""

    claimer: Claimer
    room: Callable[[], int]
    put: Callable[[list[ClaimedJob]], object]
    # Whether a job that ended has just made room; only a glance.
    has_room: Callable[[], bool]
    # How long to gather places that become free one by one, for one claim.
    gather_s: float
    last: Claim = _NOTHING
    asked: float = float("-inf")
    # Whether it had room when it was last asked.
    had_room: bool = True

    @property
    def want(self) -> Want:
        if self.last.again_in_s == 0:
            return Want.MORE
        if not self.had_room:
            return Want.ROOM
        return Want.WAKE_UP if self.last.again_in_s is None else Want.INSTANT

    @property
    def is_hungry(self) -> bool:
        """Whether it claims again as soon as it has room."""
        return self.want in (Want.ROOM, Want.MORE)


class ClaimSources:
    """Claims of one worker: of functions for its threads, and of coroutines for its loop. Not thread-safe.

    ``notify`` and ``job_ended`` may be called by any thread.
    """

    def __init__(self, functions: ClaimSource, coroutines: ClaimSource, *, most: int | None) -> None:
        """Prepare to claim ``most`` jobs, or any number; ``coroutines`` are left out while no task is one."""
        self._functions, self._coroutines = functions, coroutines
        self._most = most
        self._has_coroutines = False
        #: the last claims of all sources, merged
        self.last = _NOTHING
        #: when the last claims began, and when one was last answered (monotonic seconds)
        self.asked = self.answered = float("-inf")
        self.claimed = 0
        self._notified = self._look_until = float("-inf")
        self._limit_may_be_free = False

    @property
    def all(self) -> tuple[ClaimSource, ...]:
        return (self._functions, self._coroutines) if self._has_coroutines else (self._functions,)

    @property
    def left(self) -> int:
        """How many more jobs may be claimed."""
        return sys.maxsize if self._most is None else max(0, self._most - self.claimed)

    @property
    def has_backlog(self) -> bool:
        """Whether one of the last claims reported more due jobs."""
        return any(source.want is Want.MORE for source in self.all)

    @property
    def expects_more(self) -> bool:
        """Whether a wake-up has announced jobs that may not be committed yet."""
        return self.asked < self._look_until

    @property
    def are_hungry(self) -> bool:
        """Whether one waits for room."""
        return any(source.is_hungry for source in self.all)

    def notify(self, *, more: bool) -> None:
        """Claim at the next opportunity, and for a while if ``more`` jobs follow soon."""
        self._notified = time.monotonic()
        if more:
            self._look_until = self._notified + SECOND_POLL.total_seconds()

    def job_ended(self) -> bool:
        """Return whether to claim at once: a place is free, or may be under a limit."""
        if self.last.throttled:
            self._limit_may_be_free = True
            return True
        return self._has_coroutines and any(source.is_hungry and source.has_room() for source in self.all)

    def wait_for_limit(self, stopping: threading.Event) -> None:
        """Wait until a limit may have room, if the end of a job lets the limit be checked again."""
        if self._limit_may_be_free:
            stopping.wait(max(0.0, self.asked + LIMIT_WAIT_S[0] - time.monotonic()))
            self._limit_may_be_free = False

    def claim(self, stopping: threading.Event, on_jobs: Callable[[], None], *, scans_again: bool = False) -> None:
        """Claim for each source that has room; ``on_jobs`` is called after each claim that brought some.

        Raises database errors.
        """
        self._has_coroutines = registry.has_coroutines()
        asked, was_hungry = time.monotonic(), self.are_hungry
        for source in self.all:
            room = min(source.room(), self.left)
            # While one source waits for room, rounds are frequent: the other claims once in ROOM_S, or on a wake-up.
            is_early = was_hungry and asked - source.asked < (source.gather_s if source.is_hungry else ROOM_S)
            if room and (scans_again or not is_early or self._notified > source.asked):
                self._fill(source, room, stopping, on_jobs, scans_again=scans_again)
            source.claimer.refresh_limits()
            source.had_room = room > 0
        self.asked, self.last = asked, self._functions.last
        if self._has_coroutines:
            self.last = self.last.merged_with(self._coroutines.last)

    def _fill(
        self,
        source: ClaimSource,
        room: int,
        stopping: threading.Event,
        on_jobs: Callable[[], None],
        *,
        scans_again: bool,
    ) -> None:
        """Claim for a source, and at once again while it has a backlog and much room.

        Work between two polls releases the interpreter's lock several times, and each of eight threads with the
        smallest jobs keeps it for 5 ms: they had run all claimed jobs before the next claim began.
        """
        until = time.monotonic() + _FILL_S
        while True:
            source.asked = time.monotonic()
            source.last = claim = source.claimer.claim(room, scans_again=scans_again)
            self.answered = time.monotonic()
            self.claimed += len(claim.jobs)
            if claim.jobs:
                source.put(claim.jobs)
                on_jobs()
            room = min(source.room(), self.left)
            if (
                room < _FILLS_FROM
                or claim.again_in_s != 0
                or self.answered > until
                or self._has_coroutines
                or stopping.is_set()
            ):
                return

    def room_wait_s(self, wait_for_room: Callable[[float], None]) -> float:
        """Wait a moment for room; or return how long to wait for room, and for wake-ups of the other source."""
        if not self._has_coroutines:
            wait_for_room(ROOM_S)
            return 0.0
        now = time.monotonic()
        waits_s = (each.asked + each.gather_s - now if each.room() else ROOM_S for each in self.all if each.is_hungry)
        return max(0.0, min(waits_s))

    def wait_s(self) -> float:
        """Return the seconds until another claim is worthwhile without a wake-up."""
        if self._notified > self.asked:
            return 0.0
        waits_s = [conf.poll_interval.total_seconds()]
        if self.expects_more:
            # The last of these claims comes when all jobs that the wake-up announced are committed.
            look_at = min(self.asked + _LOOK_AGAIN_S[bool(self.last.jobs)], self._look_until)
            waits_s.append(max(0.0, look_at - time.monotonic()))
        if self.last.again_in_s is not None:
            waits_s.append(self.last.again_in_s)
        return min(waits_s)
