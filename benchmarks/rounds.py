"""Runs the rounds of each measure: its contestants in turn, each round begun by another one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console

from benchmarks.bench import Bench
from benchmarks.measure import Contestant, Figures, Measure, Result
from benchmarks.processes import ProcessFailed


def run_all(bench: Bench, measures: Iterable[Measure], rounds: int, console: Console) -> list[Result]:
    """Run every measure; show what each run gave. A contestant that fails is noted, and the others go on."""
    results: list[Result] = []
    for measure in measures:
        console.print(f"[bold]{measure.name}[/]: {measure.title}")
        result = Result(measure)
        results.append(result)
        with measure.contestants(bench) as contestants:
            for number, contestant in _turns(contestants, min(rounds, measure.most_rounds or rounds)):
                if contestant.name in result.failures:
                    continue
                began = time.monotonic()
                try:
                    figures = contestant.run()
                except ProcessFailed as error:
                    result.failures[contestant.name] = str(error)
                    console.print(f"  round {number}: {contestant.name}: [red]failed[/]\n{error}", markup=True)
                    continue
                result.add(contestant.name, figures)
                took = time.monotonic() - began
                console.print(f"  round {number}: {contestant.name}: {_shown(measure, figures)} ({took:.1f} s)")
    return results


def _turns(contestants: Sequence[Contestant], rounds: int) -> Iterator[tuple[int, Contestant]]:
    for number in range(rounds):
        first = number % len(contestants)
        for contestant in [*contestants[first:], *contestants[:first]]:
            yield number + 1, contestant


def _shown(measure: Measure, figures: Figures) -> str:
    return ", ".join(f"{name} {value:,.4g} {measure.units[name]}".rstrip() for name, value in figures.items())
