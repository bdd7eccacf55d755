"""Draws what a run measured as SVG: ``python -m benchmarks.charts FOLDER RESULTS.json …`` draws it again from files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from benchmarks.measure import OURS

_WIDTH, _LABELS, _NUMBERS = 760, 230, 110
# A bar is cut off, with a gap at its end, where it would be so many times as long as ours.
_CUT: Final = 10
_ROW, _BAR, _TOP, _PAD = 28, 16, 64, 16
_STYLE: Final = """
  text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .small { font-size: 12px; fill: #57606a }
  .label { text-anchor: end }
  .back { fill: #ffffff; stroke: #d0d7de }
  .ours { fill: #0969da }
  .bare { fill: #8c959f }
  .peer { fill: #bf8700 }
  .tail { opacity: 0.35 }
  .cut { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9da7b3 }
    .back { fill: #0d1117; stroke: #30363d }
    .ours { fill: #58a6ff }
    .bare { fill: #6e7681 }
    .peer { fill: #d29922 }
    .cut { fill: #0d1117 }
  }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture: a section for each measure, of the medians of a figure, and paler behind it of a second one."""

    name: str
    title: str
    unit: str
    figure: str
    measures: Mapping[str, str]
    tail: str | None = None


CHARTS: Final = (
    Chart(
        name="drain",
        title="No-op jobs finished a second (more is better)",
        unit="jobs/s",
        figure="rate",
        measures={"drain": "one process each", "drain-machine": "the whole machine"},
    ),
    Chart(
        name="latency",
        title="From adding a job to its start, p50 and, pale, p99 (less is better)",
        unit="ms",
        figure="p50",
        tail="p99",
        measures={
            "latency": "an idle worker",
            "steady-200": "200 a second, one by one",
            "steady-2000": "2,000 a second, ten at once",
        },
    ),
    Chart(
        name="bulk",
        title="Jobs added a second, many at once (more is better)",
        unit="jobs/s",
        figure="rate",
        measures={"bulk": "each by its batch form, where it has one"},
    ),
)


def write(run: Mapping[str, Any], folder: Path, prefix: str = "benchmark") -> list[Path]:
    """Write the charts of what was measured; ``run`` is what ``report.as_json`` returned."""
    written: list[Path] = []
    for chart in CHARTS:
        if sections := [name for name in chart.measures if run["measures"].get(name, {}).get("medians")]:
            path = folder / f"{prefix}-{chart.name}.svg"
            path.write_text(_drawn(chart, sections, run))
            written.append(path)
    return written


def merged(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return runs that measured different things as one, with the facts of the last."""
    return {**runs[-1], "measures": {name: found for run in runs for name, found in run["measures"].items()}}


def _drawn(chart: Chart, sections: Sequence[str], run: Mapping[str, Any]) -> str:
    lines, y = [], _TOP
    for name in sections:
        medians: Mapping[str, Mapping[str, float]] = run["measures"][name]["medians"]
        lines.append(f'<text class="small" x="{_PAD}" y="{y + 4}">{escape(chart.measures[name])}</text>')
        y += 16
        lines += _bars(chart, medians, y)
        y += _ROW * len(medians) + 18
    height = y + 6
    facts = _facts(run, sections)
    said = f"{chart.title}. {facts}"
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={quoteattr(said)}>',
            f"<style>{_STYLE}</style>",
            f'<rect class="back" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>',
            f'<text class="title" x="{_PAD}" y="26">{escape(chart.title)}</text>',
            f'<text class="small" x="{_PAD}" y="44">{escape(facts)}</text>',
            *lines,
            "</svg>\n",
        )
    )


def _bars(chart: Chart, medians: Mapping[str, Mapping[str, float]], top: int) -> Iterator[str]:
    rows = sorted(medians.items(), key=lambda row: row[1][chart.figure], reverse=chart.tail is None)
    most = chart.tail or chart.figure
    widest = max(figures[most] for figures in medians.values())
    if OURS in medians:
        widest = min(widest, _CUT * medians[OURS][most])
    room = _WIDTH - _LABELS - _NUMBERS - 2 * _PAD
    scale = room / widest
    for number, (name, figures) in enumerate(rows):
        y = top + number * _ROW
        value, tail = figures[chart.figure], figures[chart.tail] if chart.tail else None
        kind = "ours" if name.startswith(OURS) else "bare" if name.startswith("bare") else "peer"
        yield f'<text class="label" x="{_LABELS}" y="{y + 13}">{escape(name)}</text>'
        if tail is not None:
            yield _bar(f"{kind} tail", y, min(room, tail * scale))
        yield _bar(kind, y, min(room, value * scale))
        text = _number(value) if tail is None else f"{_number(value)}, {_number(tail)}"
        length = max(value, tail or 0) * scale
        if length > room + 1:
            yield f'<rect class="cut" x="{_LABELS + room - 8}" y="{y - 2}" width="4" height="{_BAR + 4}"/>'
        end = _LABELS + 16 + min(room, length)
        yield f'<text class="small" x="{end:.1f}" y="{y + 13}">{text} {chart.unit}</text>'


def _bar(kind: str, y: int, width: float) -> str:
    return f'<rect class="{kind}" x="{_LABELS + 8}" y="{y}" width="{max(width, 1):.1f}" height="{_BAR}" rx="2"/>'


def _facts(run: Mapping[str, Any], sections: Sequence[str]) -> str:
    """Return where, when and how much: one line."""
    machine, versions = run["machine"], run["versions"]
    values = [run["measures"][name]["rounds"] for name in sections]
    least = min(len(each) for found in values for figures in found.values() for each in figures.values())
    rounds = "one round" if least == 1 else f"medians of {least} rounds"
    return (
        f"{machine['cores']} cores, {run['began'][:10]}; size {run['size']}, {rounds}; "
        f"PostgreSQL {run['postgresql']['server_version'].split()[0]}, durable; Python {versions['python']}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


if __name__ == "__main__":
    write(merged([json.loads(Path(name).read_text()) for name in sys.argv[2:]]), Path(sys.argv[1]))
