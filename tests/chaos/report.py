"""Results of each disturbance, and their table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from tests.chaos.ledger import Findings


@dataclass(slots=True)
class Tally:
    """Results of one disturbance. ``next_s``: until a later job was done; ``before_s``: all earlier ones."""

    times: int = 0
    jobs: int = 0
    effects: int = 0
    ticks: int = 0
    next_s: list[float] = field(default_factory=list[float])
    before_s: list[float] = field(default_factory=list[float])
    late: int = 0
    lost: int = 0
    doubled: int = 0
    violations: list[str] = field(default_factory=list[str])

    def judge(self, found: Findings, before: Findings | None) -> None:
        """Count what was found after one disturbance, beside what was found after the one before."""
        self.jobs += found.asked - (before.asked if before else 0)
        self.effects += found.effects - (before.effects if before else 0)
        self.ticks += found.ticks - (before.ticks if before else 0)
        self.lost += len(found.lost) + len(found.forgotten)
        self.doubled += len(found.doubled)
        for what in ("lost", "doubled", "forgotten", "unasked", "rows"):
            self.violations += [f"{what}: {marker}" for marker in getattr(found, what)]


def table(tallies: Mapping[str, Tally]) -> Table:
    """Return one row for each disturbance."""
    shown = Table(title="After each disturbance every job was examined")
    for title in (
        "disturbance",
        "times",
        "asked",
        "effects",
        "ticks",
        "next job p50",
        "max s",
        "all before p50",
        "max s",
        "late ends refused",
        "lost",
        "doubled",
        "other",
    ):
        shown.add_column(title, justify="left" if title == "disturbance" else "right")
    for name, tally in tallies.items():
        others = len(tally.violations) - tally.lost - tally.doubled
        shown.add_row(
            name,
            str(tally.times),
            str(tally.jobs),
            str(tally.effects),
            str(tally.ticks),
            *_spread(tally.next_s),
            *_spread(tally.before_s),
            str(tally.late),
            str(tally.lost),
            str(tally.doubled),
            str(others),
            style="bold red" if tally.violations else None,
        )
    return shown


def as_json(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """Return the tallies as JSON values."""
    return {name: asdict(tally) for name, tally in tallies.items()}


def _spread(seconds: list[float]) -> tuple[str, str]:
    if not seconds:
        return "–", "–"
    return f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}"
