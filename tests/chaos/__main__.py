"""Chaos of the workers: ``python -m tests.chaos --seconds 600 --seed 7 --only kill-children,crash-server --json FILE``.

Exits with 0 if no job was lost and each took effect exactly once. Otherwise, or when something does not recover, exits
with 1, keeps the logs of workers and server, and names their folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import django
from rich.console import Console

from benchmarks import queue
from tests.chaos.running import options_of, serve

_STORES = 20
_WORKERS = 2
_CHILDREN = 2 * _WORKERS
_LONG_RUN_S = 500
_PATIENCE_S = 120.0
_SHOWN = 20
# Few enough to be exhausted.
_OPTIONS = {"max_connections": "80", "shared_buffers": "128MB"}


def main(arguments: Sequence[str]) -> int:
    """Run for the given time, and every disturbance at least once."""
    options = _parsed(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    console.print(f"seed {options.seed}")
    folder = Path(tempfile.mkdtemp(prefix="salon-chaos-"))
    with ExitStack() as stack:
        server, database = serve(stack, **_OPTIONS)
        queue.create_stores(database, 1, _STORES)
        database.execute("CREATE INDEX ON customer (email)")
        os.environ |= {"DATABASE_URL": database.url("web"), "DJANGO_SETTINGS_MODULE": "tests.chaos.settings"}
        django.setup()
        from tests.chaos.rounds import Plan, run_rounds

        plan = Plan(
            seconds=options.seconds,
            seed=options.seed,
            only=options.only,
            rate=options.rate,
            children=_CHILDREN,
            stores=_STORES,
            patience_s=_PATIENCE_S,
            long=options.seconds >= _LONG_RUN_S,
        )
        try:
            tallies, faults = run_rounds(plan, server, database, folder, console)
        finally:
            shutil.copy(server.log_path, folder / "server.log")
    from tests.chaos import report

    console.print(report.table(tallies))
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "disturbances": report.as_json(tallies)}, indent=2))
    faults += [f"{name}: {fault}" for name, tally in tallies.items() for fault in tally.violations[:_SHOWN]]
    for fault in faults:
        console.print(fault, style="bold red", markup=False)
    if faults:
        console.print(f"The logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options_of("tests.chaos", __doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, metavar="NAME,…")
    parser.add_argument("--rate", type=float, default=30, help="jobs enqueued in a second")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
