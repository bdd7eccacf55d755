"""Threads and event loop that run the jobs of a worker and write their ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.run import JobRun
from salon_jobs.process.loop import Loop
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.chunk_claim import ChunkClaimer
from salon_jobs.worker.deadlines import DeadlineWatcher
from salon_jobs.worker.finisher import Finisher
from salon_jobs.worker.in_flight import InFlightTable
from salon_jobs.worker.lane import CoroutineRunner
from salon_jobs.worker.runner import Runner

# How long an idle thread may take to end.
_END_S: Final = 1.0


class Crew:
    """Runner threads, the coroutine runner, the finisher, and the deadline watcher."""

    def __init__(
        self,
        buffer: JobBuffer,
        leases: Leases,
        *,
        threads: int,
        coroutines: int,
        in_flight: InFlightTable | None,
        chunks: ChunkClaimer | None,
        on_room: Callable[[], object],
        on_timeout: Callable[[], None],
    ) -> None:
        """Create the threads; ``on_room`` is called when a coroutine has ended."""
        self._abandon = threading.Event()
        self.finisher = Finisher(leases, buffer, self._abandon)
        self._deadlines = watcher = DeadlineWatcher(on_timeout, using=leases.using)
        table = in_flight or InFlightTable(threads + coroutines)
        self._runners = [
            Runner(buffer, self.finisher, leases, number, in_flight=table, watcher=watcher, chunks=chunks)
            for number in range(threads)
        ]
        self.lane = CoroutineRunner(
            buffer,
            self.finisher,
            leases,
            places=coroutines,
            threads=threads,
            first_slot=threads,
            in_flight=table,
            watcher=watcher,
            on_room=on_room,
        )
        self.members: tuple[Runner | CoroutineRunner, ...] = (*self._runners, self.lane)

    def start(self) -> None:
        started: tuple[Loop | Runner, ...] = (self.finisher, self._deadlines, *self._runners)
        for thread in started:
            thread.start()

    @property
    def runs(self) -> list[JobRun]:
        """The runs in progress."""
        return [run for runner in self._runners if (run := runner.current) is not None] + self.lane.runs

    @property
    def ended_threads(self) -> int:
        """Number of runner threads that have ended."""
        return sum(runner.ended for runner in self._runners)

    def interrupt_all(self) -> None:
        """Interrupt all runs and requeue them; the attempts do not count."""
        for interrupt in (*(runner.interrupt_current for runner in self._runners), self.lane.interrupt_all):
            # Cancelling a query talks to the database, which may not answer: use a thread for each, so that runners do
            # not wait for one another.
            threading.Thread(target=interrupt, name="salon-jobs-interrupt", daemon=True).start()

    def end(self, *, is_idle: bool) -> None:
        """End the threads; abandon those that run a job."""
        self._abandon.set()
        if is_idle:
            for runner in self._runners:
                runner.join(_END_S)
            self.lane.end(_END_S)
        self.finisher.stop()
        self.finisher.join(_END_S)
        self._deadlines.stop()
        self._deadlines.join()
