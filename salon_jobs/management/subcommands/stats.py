"""Shows what became of the runs of each task: ``salon_jobs stats``."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core import units
from salon_jobs.jobs.statistics import TaskTotals, totals
from salon_jobs.management.arguments import duration
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.table import table

_HEAD = (
    "task", "runs", "succeeded", "retried", "failed", "mean", "p50", "p95", "wait mean", "wait p50", "wait p95",
)  # fmt: skip


class Stats(Subcommand):
    """Adds up the statistics by task, over as long as asked."""

    name = "stats"
    help = "Show runs, failures, retries, durations and waits of each task."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--last", type=duration, default=timedelta(hours=1), metavar="AGE",
            help="so long ago until now (15m, 24h, 7d …; default 1h)",
        )  # fmt: skip
        parser.add_argument("--task", action="append", metavar="NAME", help="this task only; repeatable")
        parser.add_argument("--json", action="store_true", help="write JSON, times in seconds")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write a table, or JSON."""
        rows = [
            each
            for each in totals(options["last"], using=conf.reader_database)
            if options["task"] is None or each.task in options["task"]
        ]
        if options["json"]:
            out.write(json.dumps(list(map(_described, rows)), indent=2))
        elif rows:
            out.write(table([_HEAD, *map(_cells, rows)]))
        else:
            err.write("no run ended in that time")


def _described(row: TaskTotals) -> dict[str, Any]:
    return {
        "task": row.task, "runs": row.runs, **row.outcomes,
        "duration_s": {"mean": row.mean_duration_s, "p50": row.duration(0.5), "p95": row.duration(0.95)},
        "wait_s": {"mean": row.mean_wait_s, "p50": row.wait(0.5), "p95": row.wait(0.95)},
    }  # fmt: skip


def _cells(row: TaskTotals) -> tuple[str, ...]:
    counts = (row.runs, *(row.outcomes[name] for name in ("succeeded", "retried", "failed")))
    times = (
        row.mean_duration_s, row.duration(0.5), row.duration(0.95),
        row.mean_wait_s, row.wait(0.5), row.wait(0.95),
    )  # fmt: skip
    return (row.task, *(f"{count:,}" for count in counts), *map(units.duration, times))
