"""Clients of the web process, which remember every write that was acknowledged to them."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

# File to which handlers write that they run.
RUNS: Final = "runs"
# Jobs of one write of the kind ``batch``.
BATCH: Final = 10
_TIMEOUT_S: Final = 20.0
_PAUSE_S: Final = 0.02
_RETRY_S: Final = 0.1
_WEIGHTS: Final = {
    "system": 10,
    "finishing": 10,
    "store": 20,
    "outside": 10,
    "kept": 6,
    "flaky": 4,
    "replace": 8,
    "preserve": 6,
    "dedupe": 6,
    "chunk": 8,
    "fan": 1,
    "follow": 4,
    "delayed": 4,
    "once": 6,
    "once-outside": 6,
    "steps": 3,
    "flow": 2,
    "second": 1,
}
STEPS: Final = ("first", "part0", "part1", "last")
MEMBERS: Final = ("left", "right", "join")


def names(kind: str, marker: str) -> list[str]:
    """Return the markers of the jobs, steps or members that one write asks for."""
    if kind == "follow":
        return [marker, *(f"{marker}+{part}" for part in range(3))]
    if kind == "batch":
        return [f"{marker}+{part}" for part in range(BATCH)]
    if kind in ("steps", "flow"):
        return [f"{marker}+{part}" for part in (STEPS if kind == "steps" else MEMBERS)]
    return [marker]


def marker_of(tick: datetime) -> str:
    """Return the marker of a cron tick."""
    return f"cron/{tick.astimezone(UTC):%Y-%m-%dT%H:%M}"


def second_marker(at: datetime) -> str:
    """Return the marker of a schedule's tick."""
    return f"second/{at.astimezone(UTC):%H:%M:%S.%f}"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Write whose success was answered: by which server's commit, and when."""

    marker: str
    kind: str
    server: int
    at: float


class Client:
    """One keep-alive connection to the web process. Not thread-safe."""

    def __init__(self, port: int, name: str, stores: Sequence[str]) -> None:
        self._port, self._name, self._stores = port, name, stores
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        self._number = 0
        self.acknowledged: list[Acknowledged] = []
        self.refused = 0

    def write(
        self, kind: str, *, key: str = "", store: str = "", messages: Sequence[tuple[str, str]] = ()
    ) -> Acknowledged | None:
        """Ask for one write; return None if it was not acknowledged, which leaves open whether it happened."""
        self._number += 1
        marker = f"{self._name}/{self._number}"
        body = {"marker": marker, "kind": kind, "key": key, "store": store or self._stores[0], "messages": messages}
        try:
            self._connection.request("POST", "/write/", json.dumps(body))
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self.refused += 1
            return None
        if response.status != 200:
            self.refused += 1
            return None
        found = Acknowledged(marker, kind, json.loads(answer)["server"], time.time())
        self.acknowledged.append(found)
        return found

    def insist(
        self, kind: str, *, key: str = "", messages: Sequence[tuple[str, str]] = (), patience_s: float = 90.0
    ) -> Acknowledged:
        """Write until one is acknowledged. Raises TimeoutError."""
        deadline = time.monotonic() + patience_s
        while (found := self.write(kind, key=key, messages=messages)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no request succeeded within {patience_s:.0f} s")
            time.sleep(_RETRY_S)
        return found


class Load:
    """Threads, each a client that writes without end."""

    def __init__(self, port: int, stores: Sequence[str], aggregates: Sequence[str], *, threads: int, seed: int) -> None:
        self._stores, self._aggregates, self._seed = stores, aggregates, seed
        self._go, self._ended = threading.Event(), threading.Event()
        self._idle = [threading.Event() for _ in range(threads)]
        self.clients = [Client(port, f"load{number}-{seed}", stores) for number in range(threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True, name=f"failover-load-{number}")
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def resume(self) -> None:
        """Write."""
        for idle in self._idle:
            idle.clear()
        self._go.set()

    def pause(self) -> None:
        """Write no more; return when every request is answered or given up."""
        self._go.clear()
        for idle in self._idle:
            if not idle.wait(4 * _TIMEOUT_S):
                raise TimeoutError("a client hangs")

    def stop(self) -> None:
        """End the threads."""
        self._ended.set()
        self._go.set()
        for thread in self._threads:
            thread.join(4 * _TIMEOUT_S)

    def _run(self, number: int) -> None:
        dice = random.Random(f"{self._seed}/{number}")
        client = self.clients[number]
        while True:
            if not self._go.is_set():
                self._idle[number].set()
                self._go.wait()
            if self._ended.is_set():
                return
            [kind] = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            shelf = dice.randrange(3)
            # One store for one key, so that its order is known.
            store = self._stores[shelf % len(self._stores)]
            messages = [("orders", name) for name in sorted(dice.sample(self._aggregates, dice.randint(0, 2)))]
            with suppress(ValueError):  # an answer that was cut
                done = client.write(kind, key=f"k{number}.{shelf}", store=store, messages=messages)
                time.sleep(_PAUSE_S if done else _RETRY_S)
