"""Draws lines over time as SVG, with the same in words for those who do not see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH: Final = 600
HEIGHT: Final = 120
# The line of what is zero or the most is drawn whole.
_MARGIN: Final = 3

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """Is one line: a value for each step, None where nothing is known."""

    label: str
    values: Values

    @property
    def last(self) -> float | None:
        """Return the newest value that is known."""
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def most(self) -> float:
        """Return the largest value."""
        return max((value for value in self.values if value is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class Plot:
    """Is one plot of one or more lines over the same steps; ``shown`` writes a value with its unit."""

    key: str
    title: str
    lines: tuple[Line, ...]
    times: tuple[datetime, ...]
    shown: Callable[[float | None], str]

    @property
    def top(self) -> float:
        """Return the value at the upper edge."""
        return max(line.most for line in self.lines)

    @property
    def top_shown(self) -> str:
        """Write the value at the upper edge."""
        return self.shown(self.top)

    @property
    def legend(self) -> list[tuple[int, str, str, str]]:
        """Return each line's number, label, newest and largest value."""
        return [
            (number, line.label, self.shown(line.last), self.shown(line.most)) for number, line in enumerate(self.lines)
        ]

    @property
    def words(self) -> str:
        """Say what the plot shows."""
        said = "; ".join(f"{label}: now {last}, at most {most}" for _, label, last, most in self.legend)
        return f"{self.title}. {said}."

    @property
    def svg(self) -> SafeString:
        """Draw it; styled by classes, so that no policy against inline styles stops it."""
        paths = format_html_join(
            "",
            '<path class="line line-{}" d="{}"/>',
            ((number, self._path(line)) for number, line in enumerate(self.lines)),
        )
        grid = format_html_join(
            "", '<path class="grid" d="M0 {0}H{1}"/>', ((_y(share, 1.0), WIDTH) for share in (0.0, 0.5, 1.0))
        )
        return format_html(
            '<svg class="plot" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg>',
            WIDTH, HEIGHT, self.words, grid, paths,
        )  # fmt: skip

    def _path(self, line: Line) -> str:
        """Return the line, broken where nothing is known; a value between two unknown ones is a dash."""
        width = WIDTH / max(1, len(line.values) - 1)
        parts: list[str] = []
        drawn = False
        for number, value in enumerate(line.values):
            if value is None:
                drawn = False
                continue
            x, y = round(number * width, 1), _y(value, self.top)
            parts.append(f"L{x} {y}" if drawn else f"M{x} {y}h1")
            drawn = True
        return "".join(parts)


def _y(value: float, top: float) -> float:
    share = value / top if top > 0 else 0.0
    return round(HEIGHT - _MARGIN - share * (HEIGHT - 2 * _MARGIN), 1)
