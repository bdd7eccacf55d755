"""The runs of a worker's processes, and which of these are idle, in memory that they share."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from dataclasses import dataclass
from typing import IO, Final

_REST: Final = struct.Struct("=qdd")  # lease, began, kill_at
_ID: Final = struct.Struct("=q")
_KILL_AT: Final = struct.Struct("=d")
_SLOT: Final = 32
_INSTANT: Final = struct.Struct("=d")
# An idle process records it at each poll, every second by default. After a longer silence, others answer wake-ups too.
_IDLE_FOR_S: Final = 2.0
NEVER: Final = float("inf")


def shared_file(size: int) -> IO[bytes]:
    """Return a file of ``size`` zeros that processes can inherit and map.

    On Linux it is in memory only: a container's file system may be read-only.
    """
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("salon-jobs"), "r+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - its user closes it
    file.truncate(size)
    return file


@dataclass(frozen=True, slots=True)
class InFlightRun:
    """A current run. Instants are ``time.monotonic()`` seconds, which all processes of a machine share."""

    slot: int
    job_id: int
    lease: int
    began: float
    kill_at: float


class InFlightTable:
    """One slot per runner thread and place of a coroutine: job, lease, start, and when to kill the process for it.

    The run fills it before the handler starts and clears it after the handler has ended: two writes of a few bytes to
    shared memory, no lock, no system call. The supervisor reads it: a job in no slot of a dead process had not started.
    """

    def __init__(self, slots: int, *, fileno: int = -1) -> None:
        """Map ``fileno`` (inherited from the supervisor; at least ``size(slots)`` bytes), or memory of its own."""
        self._slots = slots
        self._memory = mmap.mmap(fileno, self.size(slots))

    @staticmethod
    def size(slots: int) -> int:
        return slots * _SLOT

    def show(self, slot: int, job_id: int, lease: int, *, kill_at: float = NEVER) -> None:
        """Record that the run of this slot begins. Writes the id last, which makes the slot valid."""
        at = slot * _SLOT
        _REST.pack_into(self._memory, at + 8, lease, time.monotonic(), kill_at)
        _ID.pack_into(self._memory, at, job_id)

    def move(self, slot: int, kill_at: float) -> None:
        """Change when to kill the process for the run in this slot."""
        _KILL_AT.pack_into(self._memory, slot * _SLOT + _SLOT - _KILL_AT.size, kill_at)

    def clear(self, slot: int) -> None:
        _ID.pack_into(self._memory, slot * _SLOT, 0)

    def shown(self) -> list[InFlightRun]:
        """Return the current runs, or those in progress when the process died."""
        ids = memoryview(self._memory)[: self.size(self._slots)].cast("q")[:: _SLOT // _ID.size]
        return [
            InFlightRun(slot, job_id, *_REST.unpack_from(self._memory, slot * _SLOT + _ID.size))
            for slot, job_id in enumerate(ids)
            if job_id
        ]


class IdleTable:
    """One instant per process of a worker, in shared memory: when it last recorded that it is idle and listening.

    A wake-up reaches all of them. The first idle one answers it, so that a job costs one claim instead of one per
    process.
    """

    def __init__(self, processes: int = 1, *, number: int = 0, fileno: int = -1) -> None:
        """Map ``fileno`` (at least ``size(processes)`` bytes), or memory of its own, for the process ``number``."""
        self._number = number
        self.processes = processes
        #: whether this process received wake-ups when it last waited for one
        self.is_listening = False
        self._memory = mmap.mmap(fileno, self.size(processes))

    @staticmethod
    def size(processes: int) -> int:
        return processes * _INSTANT.size

    def answer(self, *, listening: bool, idle: bool = False) -> None:
        """Record whether this process receives wake-ups, and whether it is idle."""
        self.is_listening = listening
        self.show(idle=listening and idle)

    def show(self, *, idle: bool) -> None:
        """Record whether this process is idle."""
        _INSTANT.pack_into(self._memory, self._number * _INSTANT.size, time.monotonic() if idle else 0.0)

    @property
    def another_answers(self) -> bool:
        """Whether a process with a lower number is idle."""
        since = time.monotonic() - _IDLE_FOR_S
        return any(_INSTANT.unpack_from(self._memory, at * _INSTANT.size)[0] > since for at in range(self._number))
