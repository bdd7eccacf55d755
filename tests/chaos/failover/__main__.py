"""Failovers: ``python -m tests.chaos.failover --seconds 600 --seed 7 --only "async, killed" --json FILE``.

Exits with 0 if, with synchronous replication, nothing was lost or done twice; if, with asynchronous replication, all
that was written after the promotion was done once and in order, and what survived is consistent; if no job that runs at
most once was started twice, and no tick of cron or of a schedule is missing; and if every process went on working
without a restart. Up to three deployments run at the same time. Otherwise keeps the logs, names their folder and exits
with 1."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from tests.chaos.failover import verdict as verdicts
from tests.chaos.failover.rig import Rig
from tests.chaos.failover.scenes import SCENES, Round, Scene
from tests.chaos.failover.verdict import Verdict
from tests.chaos.running import options_of

_SHOWN = 20
_LONG_RUN_S = 500


def main(arguments: Sequence[str]) -> int:
    """Run every scene once, then random ones until the time is up."""
    options = _parsed(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 230)
    console.print(f"seed {options.seed}")
    folder = Path(tempfile.mkdtemp(prefix="salon-failover-"))
    if unknown := set(options.only or ()) - set(SCENES):
        raise SystemExit(f"unknown: {'; '.join(sorted(unknown))}; known are {'; '.join(SCENES)}")
    scenes = {name: scene for name, scene in SCENES.items() if options.only is None or name in options.only}
    found: dict[str, Verdict] = {}
    silent_after_s = 15.0 if options.seconds >= _LONG_RUN_S else 3.0
    until = time.monotonic() + options.seconds
    stopping = threading.Event()

    def run(number: int, names: Sequence[str]) -> None:
        """Run these scenes in a deployment of their own, and again in random order until the time is up."""
        dice = random.Random(f"{options.seed}/{number}")
        with ExitStack() as stack:
            rig: Rig | None = None
            for at, name in enumerate(_in_turn(names, dice), 1):
                again = at > len(names)
                if stopping.is_set() or (again and time.monotonic() > until):
                    return
                if rig is None:
                    stack.close()
                    work = folder / f"{number}-{at}"
                    work.mkdir()
                    rig = stack.enter_context(Rig(work, hosts=scenes[name].hosts, silent_after_s=silent_after_s))
                else:
                    rig.servers.rebuild()
                    rig.wait_ready()
                began = time.monotonic()
                verdict = Round(rig, scenes[name], at, dice, disturbed=again).run()
                found[f"{name} #{at}" if again else name] = verdict
                console.print(f"{name}: {time.monotonic() - began:.1f} s, {len(verdict.faults)} faults")
                for fault in verdict.faults[:_SHOWN]:
                    console.print(f"  {fault}", markup=False)
                if verdict.faults:  # the next scene shall not suffer from this one
                    rig = None

    with ThreadPoolExecutor() as pool:
        try:
            for done in as_completed(pool.submit(run, *each) for each in enumerate(_shared_out(scenes), 1)):
                done.result()
        finally:
            stopping.set()
    known = list(SCENES)
    found = dict(sorted(found.items(), key=lambda each: known.index(each[0].partition(" #")[0])))
    console.print(verdicts.table(found))
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "scenes": verdicts.as_json(found)}, indent=2))
    faults = [f"{name}: {fault}" for name, verdict in found.items() for fault in verdict.faults]
    for fault in faults[:_SHOWN]:
        console.print(fault, style="bold red", markup=False)
    if faults:
        console.print(f"{len(faults)} faults. The logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _shared_out(scenes: Mapping[str, Scene]) -> list[list[str]]:
    """Share scenes out to deployments that run at the same time: those with two hosts need one of their own."""
    of_hosts = [name for name, scene in scenes.items() if scene.hosts]
    others = [name for name, scene in scenes.items() if not scene.hosts]
    return [names for names in (others[::2], others[1::2], of_hosts) if names]


def _in_turn(names: Sequence[str], dice: random.Random) -> Iterator[str]:
    yield from names
    while True:
        yield from dice.sample(names, len(names))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options_of("tests.chaos.failover", __doc__)
    parser.add_argument("--only", type=lambda text: text.split(";"), default=None, metavar="SCENE;…")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
