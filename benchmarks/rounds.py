"""Runs the rounds of each measure: its contestants in turn, each round begun by another one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import psycopg
from rich.console import Console
from rich.markup import escape

from benchmarks.bench import Bench
from benchmarks.measure import Contestant, Figures, Measure, Result
from benchmarks.processes import ProcessFailed


def run_all(bench: Bench, measures: Iterable[Measure], rounds: int, console: Console, results: list[Result]) -> None:
    """Run every measure and add to ``results``; show what each run gave. One that fails is noted, the others go on."""
    for measure in measures:
        console.print(f"[bold]{measure.name}[/]: {measure.title}")
        result = Result(measure)
        results.append(result)
        with measure.contestants(bench) as contestants:
            for number, contestant in _turns(contestants, min(rounds, measure.most_rounds or rounds)):
                if contestant.name in result.failures:
                    continue
                label = f"  round {number}: {contestant.name}"
                began = time.monotonic()
                with console.status(label):
                    shown = _run(contestant, result)
                    bench.sweep()
                console.print(f"{label}: {shown} ({time.monotonic() - began:.1f} s)")


def _run(contestant: Contestant, result: Result) -> str:
    """Run it once, keep its figures or its failure, and return what to show."""
    try:
        figures = contestant.run()
    except (ProcessFailed, psycopg.Error, OSError) as error:
        result.failures[contestant.name] = str(error)
        return f"[red]failed[/]: {escape(str(error))}"
    result.add(contestant.name, figures)
    return _shown(result.measure, figures)


def _turns(contestants: Sequence[Contestant], rounds: int) -> Iterator[tuple[int, Contestant]]:
    for number in range(rounds):
        first = number % len(contestants)
        for contestant in [*contestants[first:], *contestants[:first]]:
            yield number + 1, contestant


def _shown(measure: Measure, figures: Figures) -> str:
    return ", ".join(f"{name} {value:,.4g} {measure.units[name]}".rstrip() for name, value in figures.items())
