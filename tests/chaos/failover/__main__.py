"""Failovers: ``python -m tests.chaos.failover --seconds 600 --seed 7 --only "async, killed" --json FILE``.

Exits with 0 if, with synchronous replication, nothing was lost or done twice; if, with asynchronous replication, all
that was written after the promotion was done once and in order, and what survived is consistent; and if every process
went on working without a restart. Otherwise keeps the logs, names their folder and exits with 1.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from tests.chaos.failover import verdict as verdicts
from tests.chaos.failover.rig import Rig
from tests.chaos.failover.scenes import SCENES, Round
from tests.chaos.failover.verdict import Verdict

_SHOWN = 20
_LONG_RUN_S = 500


def main(arguments: Sequence[str]) -> int:
    """Run every scene once, then random ones until the time is up."""
    options = _parsed(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 190)
    console.print(f"seed {options.seed}")
    folder = Path(tempfile.mkdtemp(prefix="salon-failover-"))
    if unknown := set(options.only or ()) - set(SCENES):
        raise SystemExit(f"unknown: {'; '.join(sorted(unknown))}; known are {'; '.join(SCENES)}")
    scenes = {name: scene for name, scene in SCENES.items() if options.only is None or name in options.only}
    found: dict[str, Verdict] = {}
    silent_after_s = 15.0 if options.seconds >= _LONG_RUN_S else 3.0
    began = time.monotonic()
    dice = random.Random(options.seed)
    with ExitStack() as stack:
        rig: Rig | None = None
        for number, name in enumerate(_in_turn(list(scenes), dice), 1):
            if number > len(scenes) and time.monotonic() - began > options.seconds:
                break
            scene = scenes[name]
            if rig is None or rig.hosts != scene.hosts:
                stack.close()
                work = folder / f"{number}"
                work.mkdir()
                rig = stack.enter_context(Rig(work, hosts=scene.hosts, silent_after_s=silent_after_s))
            started = time.monotonic()
            verdict = Round(rig, scene, number, dice, disturbed=number > len(scenes)).run()
            found[name if name not in found else f"{name} #{number}"] = verdict
            console.print(f"{name}: {time.monotonic() - started:.1f} s, {len(verdict.faults)} faults")
            for fault in verdict.faults[:_SHOWN]:
                console.print(f"  {fault}", markup=False)
            if verdict.faults:  # the next scene shall not suffer from this one
                rig = None
            else:
                rig.servers.rebuild()
                rig.wait_ready()
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


def _in_turn(names: list[str], dice: random.Random) -> Iterator[str]:
    yield from names
    while True:
        # Changing between one address and two hosts costs a new deployment.
        yield from sorted(dice.sample(names, len(names)), key=lambda name: SCENES[name].hosts)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.failover", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", type=lambda text: text.split(";"), default=None, metavar="SCENE;…")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
