"""Picture of a flow: a box for each stage, from left to right, with a line from each of its predecessors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from salon_jobs.admin.cells import badge
from salon_jobs.jobs.flow_summary import FlowSummary, Stage

# Pixels: a box, and the space to the next.
_WIDTH: Final = 210
_HEIGHT: Final = 58
_ASIDE: Final = 56
_BELOW: Final = 14


def picture(flow: FlowSummary, address: Callable[[Stage], str], badges: Mapping[str, str]) -> SafeString:
    """Return the stages as SVG with linked boxes. It has no inline style, for a strict CSP."""
    layers: dict[int, list[Stage]] = defaultdict(list)
    for stage in flow.stages:
        layers[stage.layer].append(stage)
    most = max(map(len, layers.values()))
    at: dict[Stage, tuple[int, int]] = {}
    for column, stages in enumerate(layers.values()):
        # Each as near as possible to the middle of its predecessors, which are already placed.
        drawn = {stage: [at[each][1] for each in stage.after if each in at] for stage in stages}
        stages.sort(key=lambda stage: sum(drawn[stage]) / len(drawn[stage]) if drawn[stage] else 0)
        top = (most - len(stages)) * (_HEIGHT + _BELOW) // 2
        for row, stage in enumerate(stages):
            at[stage] = (column * (_WIDTH + _ASIDE), top + row * (_HEIGHT + _BELOW))
    lines = (
        (stage.condition, before_x + _WIDTH, before_y + _HEIGHT // 2, x - _ASIDE // 2, y + _HEIGHT // 2, x)
        for stage, (x, y) in at.items()
        for before_x, before_y in (at[each] for each in stage.after if each in at)
    )
    boxes = (
        (
            x,
            y,
            _WIDTH,
            _HEIGHT,
            address(stage),
            SafeString(' aria-current="true"' if stage is flow.requested else ""),
            stage.line,
            stage.title,
            format_html_join(" ", "{}", ((badge(said, badges.get(state, "quiet")),) for state, said in stage.states)),
        )
        for stage, (x, y) in at.items()
    )
    size = (len(layers) * (_WIDTH + _ASIDE) - _ASIDE, most * (_HEIGHT + _BELOW) - _BELOW)
    return format_html(
        '<div class="salon-jobs-flow" tabindex="0" role="group" aria-label="{}" data-at="{}">'
        '<svg width="{}" height="{}">{}{}</svg></div>',
        flow.name,
        at[flow.requested][0],
        *size,
        format_html_join("", '<path class="{0}" d="M{1} {2}C{3} {2} {3} {4} {5} {4}"/>', lines),
        format_html_join(
            "",
            '<foreignObject x="{}" y="{}" width="{}" height="{}"><a href="{}"{} title="{}"><strong>{}</strong>{}</a>'
            "</foreignObject>",
            boxes,
        ),
    )
