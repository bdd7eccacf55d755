"""Runs the benchmark: ``python -m benchmarks --only drain --rounds 3 --json out.json --quick``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from benchmarks import bench, charts, install, machine, redis, report, rounds
from benchmarks.measure import Measure, Result
from benchmarks.measures import MEASURES
from benchmarks.peers import PEERS, Peer
from benchmarks.processes import ROOT
from benchmarks.server import server
from benchmarks.sizes import SIZES

_RESULTS = ROOT / ".bench" / "results"
_QUICK_PEERS = ("graphile-worker",)


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; 1 when a measure failed or, unless they were left out, a peer is missing."""
    options = _parsed(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    if options.install is not None:
        return 1 if install.install_all(_named(options.install) or PEERS, console) else 0
    size = "quick" if options.quick else options.size
    sizes = SIZES[size]
    count = options.rounds or sizes.rounds
    peers, skipped, missing = _taking_part(options.peers, quick=options.quick)
    for name, why in {**skipped, **missing}.items():
        console.print(f"[bold red]{name} takes no part: {escape(why)}[/]")
    began = time.monotonic()
    results: list[Result] = []
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="salon-bench-") as folder, server(durable=size != "smoke") as found:
        facts: dict[str, Any] = {
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "size": size,
            "rounds": count,
            "sizes": asdict(sizes),
            "machine": machine.machine(),
            "versions": machine.versions(),
            "postgresql": found.facts(),
            "redis": redis.OPTIONS,
            "skipped": skipped,
            "missing": missing,
        }
        with bench.opened(found, peers, sizes, Path(folder)) as opened:
            try:
                rounds.run_all(opened, options.only or MEASURES, count, console, results)
            except KeyboardInterrupt:
                interrupted = True
                console.print("[bold red]interrupted: the rest was not measured[/]")
    judged = report.verdicts(results, skipped)
    path = options.json or _RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{size}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = report.as_json(results, judged, **facts, interrupted=interrupted, seconds=round(time.monotonic() - began, 1))
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    drawn = charts.write(kept, path.parent, path.stem)
    console.print(report.figures_table(results), report.goals_table(judged, results))
    for name, why in {**skipped, **missing}.items():
        console.print(f"[bold red]{name} took no part: {escape(why)}[/]")
    console.print(f"{size}, {count} rounds, {kept['seconds']:.0f} s; all of it is in {path}")
    for chart in drawn:
        console.print(f"drawn: {chart}")
    failed = [f"{result.measure.name}: {name}" for result in results for name in result.failures]
    if failed:
        console.print(f"[bold red]failed: {', '.join(failed)}[/]")
    return 1 if failed or missing or interrupted else 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = f"one of {', '.join(measure.name for measure in MEASURES)}; or the first words of several"
    parser.add_argument("--only", action="extend", type=_measures, metavar="MEASURE", help=known)
    parser.add_argument("--size", choices=list(SIZES), default="full", help="how much work each measure does")
    parser.add_argument("--quick", action="store_true", help="--size quick, compared with graphile-worker alone")
    parser.add_argument("--rounds", type=int, help="how many rounds (default: those of the size)")
    parser.add_argument("--peers", help="the peers that take part, with commas; 'none' for none (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: .bench/results)")
    parser.add_argument("--install", nargs="*", metavar="PEER", help="install these peers (none: all) into .bench")
    return parser.parse_args(arguments)


def _measures(name: str) -> list[Measure]:
    found = [measure for measure in MEASURES if f"{measure.name}-".startswith(f"{name}-")]
    if found:
        return [measure for measure in found if measure.name == name] or found
    raise argparse.ArgumentTypeError(f"unknown measure {name!r}; known are {', '.join(each.name for each in MEASURES)}")


def _taking_part(asked: str | None, *, quick: bool) -> tuple[list[Peer], dict[str, str], dict[str, str]]:
    """Return the peers that take part, those left out on purpose, and those that are missing, with the reason."""
    chosen = _named(_QUICK_PEERS) if quick else list(PEERS)
    if asked is not None:
        chosen = [] if asked == "none" else _named(asked.split(","))
    skipped = {peer.name: "left out of this run" for peer in PEERS if peer not in chosen}
    missing = {peer.name: install.why_missing(peer) for peer in chosen if not peer.is_installed}
    if quick:
        skipped, missing = {**skipped, **missing}, {}
    return [peer for peer in chosen if peer.is_installed], skipped, missing


def _named(names: Sequence[str]) -> list[Peer]:
    if unknown := set(names) - {peer.name for peer in PEERS}:
        raise SystemExit(f"unknown peers: {', '.join(sorted(unknown))}")
    return [peer for peer in PEERS if peer.name in names]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
