"""Jobs enqueued at a steady rate, by an application that may lose its database at any moment."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import NAMESPACE_OID, UUID, uuid5

from django.db import Error, IntegrityError, connection

from project.salon.models import Customer
from salon_jobs import schedule, tenant_context
from tests.chaos import tasks

ASKED: Final = "asked"
# Each thread has keys of its own, so that the order of what it enqueues under one is known.
_KEYS: Final = 3
_RETRY_S: Final = 0.1
_PATIENCE_S: Final = 60.0
_WEIGHTS: Final = {
    "atomic": 34,
    "slow": 3,
    "outside": 13,
    "finishing": 13,
    "flaky": 9,
    "keyed": 15,
    "steps": 9,
    "flow": 4,
}
_SCHEDULES: Final = 5
_EVERY: Final = timedelta(seconds=1)
# No outage is as long: each tick is owed.
_CATCH_UP: Final = timedelta(hours=1)


class Load:
    """Threads that enqueue. ``confirmed`` holds the markers whose commit was confirmed at once or found later."""

    def __init__(self, stores: Sequence[UUID], *, rate: float, threads: int, seed: int) -> None:
        self._stores = stores
        self._every_s = threads / rate
        self._seed = seed
        self._go = threading.Event()
        self._ended = threading.Event()
        self._quiet = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"chaos-load-{number}", daemon=True)
            for number in range(threads)
        ]
        self._probes = 0
        self.confirmed: list[str] = []
        self.unclear = 0

    def start(self) -> None:
        for number, store_id in enumerate(self._stores[:_SCHEDULES]):
            key = f"second{number}"
            with tenant_context(store_id):
                schedule(tasks.tick.call(store_id=store_id, key=key), every=_EVERY, key=key, catch_up=_CATCH_UP)
        self._go.set()
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Stop enqueueing; return once every commit is decided. Raises RuntimeError if one never is."""
        self._go.clear()
        for _ in self._threads:
            if not self._quiet.acquire(timeout=_PATIENCE_S):
                raise RuntimeError("an enqueuing thread has died or hangs; see the standard error")

    def resume(self) -> None:
        """Continue after ``pause``."""
        self._go.set()

    def stop(self) -> None:
        """End the threads. Call it while paused."""
        self._ended.set()
        self._go.set()
        for thread in self._threads:
            thread.join()

    def add(self, kind: str) -> str:
        """Enqueue one job from the calling thread and return its marker."""
        self._probes += 1
        marker = f"{kind}/extra/{self._probes}"
        self._enqueue(kind, marker, self._stores[self._probes % len(self._stores)])
        return marker

    def _run(self, thread: int) -> None:
        choose = random.Random(f"{self._seed}/{thread}")
        number = 0
        while True:
            if not self._go.is_set():
                self._quiet.release()
                self._go.wait()
            if self._ended.is_set():
                break
            number += 1
            [kind] = choose.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            series, store = f"{thread}", choose.choice(self._stores)
            if kind == "keyed":  # one store for one key
                key = choose.randrange(_KEYS)
                series, store = f"{thread}.{key}", self._stores[key % len(self._stores)]
            self._enqueue(kind, f"{kind}/{series}/{number}", store)
            time.sleep(self._every_s)
        connection.close()

    def _enqueue(self, kind: str, marker: str, store_id: UUID) -> None:
        """Write a row ``asked`` and the job in one transaction, until they are known to be committed.

        When the connection breaks, it is unknown whether the commit happened. The ID of the row follows from the
        marker, so another try waits until the first is decided, and meets the row if it was committed.
        """
        row_id = uuid5(NAMESPACE_OID, f"{ASKED} {marker}")
        while True:
            try:
                with tenant_context(store_id):
                    Customer(id=row_id, store_id=store_id, name=ASKED, email=marker).save(force_insert=True)
                    _add(kind, store_id, marker)
            except IntegrityError:
                break
            except Error:
                self.unclear += 1
                connection.close()
                time.sleep(_RETRY_S)
            else:
                break
        self.confirmed.append(marker)


def _add(kind: str, store_id: UUID, marker: str) -> None:
    if kind == "flow":
        tasks.start_flow(store_id, marker)
    elif kind == "keyed":
        tasks.keyed.enqueue(store_id=store_id, key=marker.rpartition("/")[0], marker=marker)
    else:
        getattr(tasks, kind).enqueue(store_id=store_id, marker=marker)
