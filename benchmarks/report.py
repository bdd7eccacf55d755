"""Turns the results of a run into medians, verdicts, a JSON file and a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.measure import OURS, Goal, Measure, Result

_NUMBERS = ("ours", "theirs", "ratio", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Compares one median of ours with its goal; ``reached`` is None when either side is missing."""

    measure: str
    figure: str
    of: str
    ours: float | None
    against: str | None
    theirs: float | None
    ratio: float | None
    required: str
    reached: bool | None


def verdicts(results: Sequence[Result], skipped: Mapping[str, str]) -> list[Verdict]:
    """Judge every goal. Goals against a peer that was left out on purpose are left out too.

    What follows a comma in the name of a contestant tells it from others of the same peer.
    """
    return [
        _judged(result, goal)
        for result in results
        for goal in result.measure.goals
        if goal.against is None or goal.against.partition(",")[0] not in skipped
    ]


def as_json(results: Sequence[Result], judged: Sequence[Verdict], **facts: Any) -> dict[str, Any]:
    """Return everything there is to keep of a run."""
    return {
        **facts,
        "measures": {
            result.measure.name: {
                "title": result.measure.title,
                "units": dict(result.measure.units),
                "medians": {name: _medians(figures) for name, figures in result.rounds.items()},
                "rounds": result.rounds,
                "failures": result.failures,
            }
            for result in results
        },
        "verdicts": [asdict(verdict) for verdict in judged],
    }


def goals_table(judged: Sequence[Verdict], results: Sequence[Result]) -> Table:
    """Return the table of goals: our median, the other's, their ratio, what is required, and whether it is reached."""
    measures = {result.measure.name: result.measure for result in results}
    table = Table(title="Medians and goals")
    for name in ("measure", "figure", "ours", "beside", "theirs", "ratio", "required", "reached"):
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    before = ""
    for verdict in judged:
        if verdict.measure != before and before:
            table.add_section()
        unit = measures[verdict.measure].units[verdict.figure]
        figure = f"{verdict.figure} ({unit})" if unit else verdict.figure
        table.add_row(
            "" if verdict.measure == before else verdict.measure,
            figure if verdict.of == OURS else f"{figure}, {verdict.of}",
            number(verdict.ours),
            verdict.against or "",
            number(verdict.theirs),
            "" if verdict.ratio is None else f"{verdict.ratio:.2f}",
            verdict.required,
            {True: "[green]yes[/]", False: "[red]NO[/]", None: "[red]not measured[/]"}[verdict.reached],
        )
        before = verdict.measure
    return table


def figures_table(results: Sequence[Result]) -> Table:
    """Return the table of all medians, with the least and the most of the rounds."""
    table = Table(title="All figures: median (least to most)")
    for name in ("measure", "contestant", "figure"):
        table.add_column(name)
    table.add_column("median", justify="right")
    table.add_column("rounds", justify="right")
    for result in results:
        for name, figure, unit, values in _rows(result):
            spread = f"{number(min(values))} to {number(max(values))}"
            table.add_row(result.measure.name, name, figure, f"{number(median(values))} {unit}".rstrip(), spread)
        for name in result.failures:
            table.add_row(result.measure.name, name, "", "[red]failed[/]", "")
    return table


def _rows(result: Result) -> Iterator[tuple[str, str, str, list[float]]]:
    for name, figures in result.rounds.items():
        for figure, values in figures.items():
            yield name, figure, result.measure.units[figure], values


def _judged(result: Result, goal: Goal) -> Verdict:
    ours = _median(result, goal.of, goal.figure)
    theirs = None if goal.against is None else _median(result, goal.against, goal.figure)
    ratio = ours / theirs if ours is not None and theirs else None
    value = ours if goal.against is None else ratio
    return Verdict(
        measure=result.measure.name,
        figure=goal.figure,
        of=goal.of,
        ours=ours,
        against=goal.against,
        theirs=theirs,
        ratio=ratio,
        required=_required(result.measure, goal),
        reached=None if value is None else goal.reached_by(value),
    )


def _required(measure: Measure, goal: Goal) -> str:
    sign, bound = ("≥", goal.at_least) if goal.at_least is not None else ("≤", goal.at_most)
    unit = "×" if goal.against is not None else measure.units[goal.figure]
    return f"{sign} {bound:g} {unit}".rstrip()


def _median(result: Result, contestant: str, figure: str) -> float | None:
    values = result.rounds.get(contestant, {}).get(figure)
    return median(values) if values else None


def _medians(figures: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in figures.items()}


def number(value: float | None) -> str:
    """Return a figure with three digits at least, thousands apart."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
