"""Report of a demo run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from project.demo.verify import Problem
from project.demo.verify_messages import MessageFigures
from project.demo.worker_log import TaskFigures

TASKS: Final = (
    "expire-tentative-reservations",
    "expire-tentative-for-store",
    "aggregate-daily-sales",
    "aggregate-daily-sales-for-store",
    "cleanup-deleted-customers",
    "cleanup-deleted-customers-for-store",
    "purge-deleted-customer-notes",
    "purge-deleted-customer-notes-for-store",
    "cleanup-expired-operator-sessions",
    "cleanup-expired-operator-invitations",
    "send-operator-invitation-email",
    "ping",
    # The demo's own tasks, not part of the catalogue: the destination of returning messages.
    "record-confirmation",
    "parse-upload",
)
_SHOWN_PROBLEMS: Final = 20


def print_figures(console: Console, tasks: Mapping[str, TaskFigures], rows_changed: Mapping[str, int]) -> None:
    """Print one line per task, in 80 columns; tasks that never ran show zeros."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", row_styles=("", "dim"))
    table.add_column("task", no_wrap=True)
    for name in ("jobs", "done", "retried", "failed", "rows", "p50/p95\nms"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for task in TASKS:
        figures = tasks.get(task, TaskFigures())
        outcomes = figures.outcomes
        table.add_row(
            task,
            f"{len(figures.jobs):,}",
            f"{outcomes['succeeded']:,}",
            _marked(outcomes["retried"], "yellow"),
            _marked(outcomes["failed"], "red"),
            f"{rows_changed.get(task, 0):,}",
            f"{_milliseconds(figures.percentile_ms(50))}/{_milliseconds(figures.percentile_ms(95))}",
        )
    console.print(table)


def print_messages(console: Console, figures: Mapping[str, MessageFigures]) -> None:
    """Print what became of each event's messages, each count taken from a different place."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", row_styles=("", "dim"))
    table.add_column("message", no_wrap=True, vertical="bottom")
    for name in ("committed", "rolled\nback", "waited\nfor NATS", "published", "in\nNATS", "taken\nin", "jobs"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for event, of in figures.items():
        counts = (of.committed, of.rolled_back, of.waited, of.published, of.in_stream, of.taken_in, of.jobs)
        table.add_row(event, *("–" if count is None else f"{count:,}" for count in counts))
    console.print()
    console.print(table)
    console.print()


def print_verdict(console: Console, problems: Sequence[Problem], *, stores: int, rows: int) -> None:
    """Print whether everything is as expected; if not, which stores and rows are not."""
    if not problems:
        console.print(
            f"[bold green]Verified[/]: in {stores} stores and {rows:,} rows, exactly what had to change changed;\n"
            "each store's messages arrived in order, each once, and none of what rolled back;\n"
            "each uploaded file was parsed once."
        )
        return
    console.print(f"[bold red]Not verified[/]: {len(problems)} differences.")
    for problem in problems[:_SHOWN_PROBLEMS]:
        console.print(f"  {problem.store}: {problem.what}", markup=False, soft_wrap=True)
    if len(problems) > _SHOWN_PROBLEMS:
        console.print(f"  … and {len(problems) - _SHOWN_PROBLEMS} more")


def _marked(count: int, colour: str) -> str:
    return f"[{colour}]{count:,}[/]" if count else "0"


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 10 else f"{value:,.0f}"
