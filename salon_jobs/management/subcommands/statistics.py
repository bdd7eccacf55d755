"""``salon_jobs stats`` and ``salon_jobs prune``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from salon_jobs.core import units
from salon_jobs.core.units import with_noun
from salon_jobs.jobs.pruning import BATCH, count_prunable, prune_jobs, retained
from salon_jobs.jobs.statistics import FLUSH_EVERY_S, TaskTotals, counted_until, totals
from salon_jobs.management.arguments import add_options, duration
from salon_jobs.management.output import Console, listed_counts
from salon_jobs.management.subcommands import Subcommand

_HEAD = ("task", "runs", "succeeded", "retried", "failed", "mean", "p50", "p95", "wait mean", "wait p50", "wait p95")
_ONLY_WIDE: Final = ("mean", "wait mean", "wait p50")


class Stats(Subcommand):
    """Subcommand that sums the statistics by task over the given period."""

    name = "stats"
    help = "Show runs, failures, retries, durations and waits of each task."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--last",
            type=duration,
            default=timedelta(hours=1),
            metavar="AGE",
            help="from this long ago until now (15m, 24h, 7d …; default 1h)",
        )
        parser.add_argument("--task", action="append", metavar="NAME", help="this task only; repeatable")
        parser.add_argument("--json", action="store_true", help="write JSON, times in seconds")

    def run(self, console: Console) -> None:
        rows = [
            each
            for each in totals(console["last"], using=console.using)
            if console["task"] is None or each.task in console["task"]
        ]
        table, nothing = [_HEAD, *map(_cells, rows)], "no run is counted in this period"
        console.listing(list(map(described, rows)), table, nothing, only_wide=_ONLY_WIDE)
        if not console["json"]:
            counted = timezone.localtime(counted_until(using=console.using))
            console.note(f"counted up to {counted:%H:%M:%S %Z}: workers add their runs every {FLUSH_EVERY_S:g} s")


def described(row: TaskTotals) -> dict[str, Any]:
    """Return a task's totals for JSON."""
    return {
        "task": row.task,
        "runs": row.runs,
        **row.outcomes,
        "duration_s": {"mean": row.mean_duration_s, "p50": row.duration(0.5), "p95": row.duration(0.95)},
        "wait_s": {"mean": row.mean_wait_s, "p50": row.wait(0.5), "p95": row.wait(0.95)},
    }


def _cells(row: TaskTotals) -> tuple[str, ...]:
    counts = (row.runs, *(row.outcomes[name] for name in ("succeeded", "retried", "failed")))
    run = (units.duration(row.mean_duration_s), units.about(row.duration(0.5)), units.about(row.duration(0.95)))
    wait = (units.duration(row.mean_wait_s), units.about(row.wait(0.5)), units.about(row.wait(0.95)))
    return (row.task, *(f"{count:,}" for count in counts), *run, *wait)


class Prune(Subcommand):
    """Subcommand that deletes ended jobs of some states and ages with their errors, in batches that block nothing."""

    name = "prune"
    help = "Delete ended jobs and their errors: those past their retention, or older than an age."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than",
            type=duration,
            metavar="AGE",
            help="jobs that ended longer ago than this (7d, 12h …); default: each state's RETAIN_…",
        )
        parser.add_argument(
            "--state",
            action="append",
            choices=[state.value for state in retained()],
            help="this state only; repeatable",
        )
        add_options(parser, "--dry-run", "--yes", "--json")

    def run(self, console: Console) -> None:
        """Count, ask, delete, report the counts. Raises CommandError without a terminal to confirm on."""
        states, given, using = console["state"], console["older_than"], console.using
        chosen = {state: given or kept for state, kept in retained().items() if states is None or state.value in states}
        # States that are kept forever are left out, unless an age is given.
        ages = {state: age for state, age in chosen.items() if age is not None}
        if not ages:
            raise CommandError("the RETAIN settings keep these jobs forever; pass an age with --older-than")

        def report(done: str, counts: Mapping[str, int]) -> None:
            console.result({done.replace(" ", "_"): counts}, f"{done}: {listed_counts(counts)}")

        prunable = {state.value: count_prunable(state, age, using=using) for state, age in ages.items()}
        if console["dry_run"]:
            report("would be deleted", prunable)
            return
        if total := sum(prunable.values()):
            question = f"Delete {with_noun(total, 'job')} ({listed_counts(prunable)})?"
            console.confirm(question, otherwise="nothing was deleted", remedy="pass --yes, or --dry-run to count only")
        deleted, errors = dict.fromkeys(prunable, 0), 0
        try:
            with console.progress(total) as progress:
                for state, age in ages.items():
                    jobs = BATCH
                    while jobs == BATCH:
                        jobs, their_errors = prune_jobs(state, age, using=using)
                        deleted[state.value] += jobs
                        errors += their_errors
                        progress(f"of {total:,} deleted", sum(deleted.values()))
        finally:  # report the counts also after an interrupt or a lost database
            report("deleted", {**deleted, "errors": errors})
