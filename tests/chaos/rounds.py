"""Disturbances in turn; after each, recovery is awaited and every job examined."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from django.db import connections
from rich.console import Console

from benchmarks import queue
from benchmarks.processes import environment
from benchmarks.server import Database
from project.local.postgres import EmbeddedPostgres
from tests.chaos import ledger
from tests.chaos.disturbances import DISTURBANCES
from tests.chaos.fleet import Fleet
from tests.chaos.load import Load
from tests.chaos.report import Tally
from tests.chaos.scene import NotRecovered, Scene

_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Duration, load and disturbances of a run. ``long``: the silence of production, a minute's SIGSTOP."""

    seconds: float
    seed: int
    only: list[str] | None
    rate: float
    stores: int
    children: int
    patience_s: float
    long: bool


def run_rounds(
    plan: Plan, server: EmbeddedPostgres, database: Database, folder: Path, console: Console
) -> tuple[dict[str, Tally], list[str]]:
    """Run until the time is up and every disturbance was applied once; return the tallies and any other faults."""
    until = time.monotonic() + plan.seconds
    silence_s = 15.0 if plan.long else 3.0
    overrides = {"PROCESS_SILENT_AFTER": silence_s}
    env = environment(
        DJANGO_SETTINGS_MODULE="tests.chaos.settings",
        WORKER_DATABASE_URL=database.url("worker"),
        SALON_JOBS_OVERRIDES=json.dumps(overrides),
    )
    stores = [UUID(queue.store_id(number)) for number in range(1, plan.stores + 1)]
    load = Load(stores, rate=plan.rate, threads=_THREADS, seed=plan.seed)
    if unknown := set(plan.only or ()) - set(DISTURBANCES):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(DISTURBANCES)}")
    names = [name for name in DISTURBANCES if plan.only is None or name in plan.only]
    tallies = {name: Tally() for name in names}
    faults: list[str] = []
    name = "start"
    with Fleet(plan.children // 2, env, folder) as fleet:
        scene = Scene(
            server=server,
            database=database,
            fleet=fleet,
            load=load,
            dice=random.Random(plan.seed),
            suspend_s=60.0 if plan.long else 7.0,
            outage_s=10.0 if plan.long else 3.0,
            patience_s=plan.patience_s,
        )
        late = 0
        found: ledger.Findings | None = None
        try:
            scene.wait_ready(plan.children)
            load.start()
            for name in _in_turn(names, scene.dice):
                if time.monotonic() > until and all(tally.times for tally in tallies.values()):
                    break
                time.sleep(1)
                found = _disturb(name, scene, tallies[name], found, console)
                seen_late = fleet.logged("job_lease_lost")
                tallies[name].late += seen_late - late
                late = seen_late
                scene.wait_ready(plan.children)
                load.resume()
            load.pause()
            load.stop()
            if any(statuses := fleet.stop()):
                faults.append(f"workers did not end in order: {statuses}")
        except NotRecovered as error:
            faults.append(f"{name}: {error}")
        finally:
            connections.close_all()
    console.print(f"workers restarted: {fleet.restarts}, enqueues tried again: {load.unclear}")
    return tallies, faults


def _disturb(
    name: str, scene: Scene, tally: Tally, before: ledger.Findings | None, console: Console
) -> ledger.Findings:
    disturbance = DISTURBANCES[name](scene)
    newest = scene.newest_job()
    scene.wait_done(scene.load.add("atomic"))
    next_s = time.monotonic() - disturbance.at
    scene.wait_ended(newest)
    before_s = time.monotonic() - disturbance.at
    disturbance.undo()
    scene.load.pause()
    found = ledger.examine(scene.database, scene.load.confirmed, scene.wait_drained())
    tally.times += 1
    tally.next_s.append(next_s)
    tally.before_s.append(before_s)
    tally.judge(found, before)
    verdict = "well" if not tally.violations else f"{len(tally.violations)} violations"
    console.print(f"{name}: next job after {next_s:.2f} s, all before after {before_s:.2f} s, {verdict}")
    return found


def _in_turn(names: list[str], dice: random.Random) -> Iterator[str]:
    while True:
        yield from dice.sample(names, len(names))
