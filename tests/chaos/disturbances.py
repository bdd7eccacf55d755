"""Disturbances of the workers and the server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from benchmarks.processes import descendants
from tests.chaos.scene import NotRecovered, Scene

_WORKER_BACKENDS: Final = "SELECT pid FROM pg_stat_activity WHERE usename IN ('worker_runtime', 'app')"
_HELD: Final = """
SELECT count(*) FROM salon_jobs_job
WHERE state = 'running' AND task = 'chaos-slow'
  AND leased_by IN (SELECT id FROM salon_jobs_process WHERE pid = ANY (%s))
"""
# How long suspended slow jobs need to end.
_LATE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Instant from which recovery is timed, and a function that ends the disturbance after the measurement."""

    at: float
    undo: Callable[[], None] = lambda: None


def kill_children(scene: Scene) -> Disturbance:
    """Kill -9 one to four processes that run jobs, one after the other."""
    began = time.monotonic()
    for _ in range(scene.dice.randint(1, 4)):
        if children := scene.fleet.children():
            began = _kill(scene.dice.choice(children), began)
        time.sleep(scene.dice.uniform(0, 0.6))
    return Disturbance(began)


def kill_parents(scene: Scene) -> Disturbance:
    """Kill -9 one supervisor or all of them; the fleet starts them again."""
    parents = scene.fleet.parents()
    began = time.monotonic()
    for pid in scene.dice.sample(parents, scene.dice.randint(1, len(parents))):
        began = _kill(pid, began)
    return Disturbance(began)


def terminate_backends(scene: Scene) -> Disturbance:
    """Terminate random backends of workers and of enqueuers, several times in a row."""
    began = time.monotonic()
    with scene.connect() as connection:
        for _ in range(scene.dice.randint(2, 5)):
            _terminate(scene, connection, share=scene.dice.uniform(0.2, 1.0))
            began = time.monotonic()
            time.sleep(scene.dice.uniform(0, 0.4))
    return Disturbance(began)


def stop_server(scene: Scene) -> Disturbance:
    """Shut the server down (fast), and start it after a while."""
    scene.server.stop()
    return _start_later(scene)


def crash_server(scene: Scene) -> Disturbance:
    """Shut the server down (immediate), like a crash, and start it after a while."""
    scene.server.kill()
    return _start_later(scene)


def exhaust_connections(scene: Scene) -> Disturbance:
    """Occupy every connection that roles may have, and terminate backends of workers, which cannot reconnect."""
    url = scene.database.url("web")
    until = time.monotonic() + scene.outage_s
    with ExitStack() as held, scene.connect() as connection:
        while time.monotonic() < until:
            with suppress(psycopg.OperationalError):
                while True:
                    held.enter_context(psycopg.connect(url, connect_timeout=2, application_name="chaos-holder"))
            _terminate(scene, connection, share=0.3)
    return Disturbance(time.monotonic())


def suspend_worker(scene: Scene) -> Disturbance:
    """SIGSTOP one supervisor and its children during jobs, for longer than the silence period.

    Its children continue first, so that they try to end their jobs before they learn that they lost them.
    """
    parent, family = _busy_family(scene)
    began = time.monotonic()

    def resume() -> None:
        time.sleep(max(0.0, scene.suspend_s - (time.monotonic() - began)))
        _signal(family, signal.SIGCONT)
        time.sleep(_LATE_S)
        _signal([parent], signal.SIGCONT)

    return Disturbance(began, resume)


DISTURBANCES: Final[dict[str, Callable[[Scene], Disturbance]]] = {
    "kill-children": kill_children,
    "kill-parents": kill_parents,
    "terminate-backends": terminate_backends,
    "stop-server": stop_server,
    "crash-server": crash_server,
    "exhaust-connections": exhaust_connections,
    "suspend-worker": suspend_worker,
}


def _kill(pid: int, otherwise: float) -> float:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()
    return otherwise


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _start_later(scene: Scene) -> Disturbance:
    time.sleep(scene.dice.uniform(0.2, scene.outage_s))
    scene.server.start()
    return Disturbance(time.monotonic())


def _terminate(scene: Scene, connection: psycopg.Connection[Any], *, share: float) -> None:
    pids = [
        row[0]
        for row in connection.execute(f"{_WORKER_BACKENDS} AND application_name <> 'chaos-holder'".encode())
        if scene.dice.random() < share
    ]
    connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", [pids])


def _busy_family(scene: Scene) -> tuple[int, list[int]]:
    """Suspend a supervisor and its children while they run slow jobs. Raises NotRecovered if none ever does."""
    for _ in range(20):
        for _ in range(16):
            scene.load.add("slow")
        parent = scene.dice.choice(scene.fleet.parents())
        family = descendants(parent)
        _signal([parent, *family], signal.SIGSTOP)
        with scene.connect() as connection:
            [(held,)] = connection.execute(_HELD.encode(), [family]).fetchall()
        if held:
            return parent, family
        _signal([*family, parent], signal.SIGCONT)
    raise NotRecovered("a worker that is to be suspended takes no jobs")
