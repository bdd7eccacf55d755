"""Says what a measure is: contestants that are run in turn, the figures they give, and the goals these must reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from benchmarks.bench import Bench

OURS = "salon_jobs"
Figures: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Contestant:
    """Names one who takes part; ``run`` does one round and returns its figures."""

    name: str
    run: Callable[[], Figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Bounds one figure of ours: as a ratio to another's (``against``), else as an absolute value."""

    figure: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    of: str = OURS

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"the goal for {self.figure!r} needs either at_least or at_most")

    def reached_by(self, value: float) -> bool:
        """Tell whether a ratio (or, without ``against``, a value) is good enough."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is not None and value <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Describes one measure. ``contestants`` prepares them, and cleans up when its context ends.

    ``units`` gives the figures and their units. ``most_rounds`` bounds what is too long, or too steady, to be repeated.
    """

    name: str
    title: str
    units: Mapping[str, str]
    goals: Sequence[Goal]
    contestants: Callable[[Bench], AbstractContextManager[Sequence[Contestant]]]
    most_rounds: int | None = None


@dataclass(slots=True)
class Result:
    """Collects what the rounds of one measure gave: contestant → figure → one value a round."""

    measure: Measure
    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, contestant: str, figures: Figures) -> None:
        """Keep the figures of one round."""
        kept = self.rounds.setdefault(contestant, {})
        for name, value in figures.items():
            kept.setdefault(name, []).append(value)
