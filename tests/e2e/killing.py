"""Kills of the children of a worker while it works off many jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tests.e2e.worker_process import WorkerProcess
from tests.waiting import eventually


def kill_children(worker: WorkerProcess, done: Callable[[], int], total: int, *, kills: int) -> None:
    """Kill a child this often, while evenly more is done; wait until all is done."""
    killed = 0
    for kill in range(1, kills + 1):
        eventually(partial(lambda wanted: done() >= wanted, kill * total // (kills + 2)))
        with suppress(ProcessLookupError):
            for child in worker.children()[:1]:  # none while one has yet to be replaced
                os.kill(child["pid"], signal.SIGKILL)
                killed += 1
    eventually(done, total)
    assert killed
