"""The dashboard: waiting, running and failing jobs, with plots over time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from salon_jobs.admin.base import ReadOnlyAdmin, configured_parts
from salon_jobs.admin.reader import reader, sees_all_stores
from salon_jobs.core.units import number
from salon_jobs.dashboard import queues, relays
from salon_jobs.dashboard.facts import Facts
from salon_jobs.dashboard.queues import SPANS
from salon_jobs.dashboard.verdict import problems
from salon_jobs.db import clock
from salon_jobs.jobs import statistics
from salon_jobs.tenancy.active import current_store_id
from salon_jobs.tenancy.choice import CHOICE
from salon_jobs.words import about

WIDTH: Final = 600
HEIGHT: Final = 120
# A plot leaves a tenth of its height above the maximum, so that a constant does not merge with the frame, and the full
# stroke of a line below zero.
_ABOVE: Final = 12
_BELOW: Final = 3

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """Line of a plot: a value for each step, None where unknown."""

    label: str
    values: Values

    @property
    def maximum(self) -> float:
        return max((value for value in self.values if value is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class Owner:
    """A relay that owns partitions; ``id`` None: its process is gone."""

    id: int | None
    name: str
    partitions: str

    @property
    def owns_one(self) -> bool:
        return self.partitions.isdecimal()


@dataclass(frozen=True, slots=True)
class Plot:
    """Plot of one or more lines over the same steps; ``shown`` formats a value with its unit."""

    key: str
    title: str
    lines: tuple[Line, ...]
    times: tuple[datetime, ...]
    shown: Callable[[float | None], str]
    # Whether the last step is of a minute that is not over: it is dotted, and no newest value.
    running: bool = False

    @property
    def top(self) -> float:
        """The value at the highest line of the grid."""
        return max(line.maximum for line in self.lines)

    @property
    def axis(self) -> list[str]:
        """The values next to the lines of the grid, from the top; only the bottom one if all values are zero."""
        return [self.shown(self.top), self.shown(self.top / 2), self.shown(0)] if self.top else [self.shown(0)]

    @property
    def is_known(self) -> bool:
        """Whether the plot has any value."""
        return any(value is not None for line in self.lines for value in line.values)

    @property
    def points(self) -> str:
        """The values under the pointer, as JSON: the time of each step, and the value of each line."""
        steps = zip(self.times, *(line.values for line in self.lines), strict=True)
        return json.dumps(
            [[f"{timezone.localtime(at):%b %d %H:%M}", *map(self.shown, values)] for at, *values in steps]
        )

    @property
    def legend(self) -> list[tuple[int, str, str, str]]:
        """Each line's number, label, newest and largest value."""
        lines = enumerate(self.lines)
        newest = slice(self._full - 1, self._full)
        return [
            (index, line.label, self.shown(next(iter(line.values[newest]), None)), self.shown(line.maximum))
            for index, line in lines
        ]

    @property
    def _full(self) -> int:
        """How many steps are over."""
        return len(self.times) - self.running

    @property
    def newest_at(self) -> str:
        """The time of the last step that is over."""
        return f"{timezone.localtime(self.times[self._full - 1]):%H:%M}"

    @property
    def words(self) -> str:
        """A description of the plot in words."""
        said = gettext("%(label)s: %(newest)s, at most %(most)s")
        lines = [said % {"label": label, "newest": newest, "most": most} for _, label, newest, most in self.legend]
        said = gettext("%(title)s at %(time)s. %(lines)s.")
        return said % {"title": self.title, "time": self.newest_at, "lines": "; ".join(lines)}

    @property
    def svg(self) -> SafeString:
        """The plot as SVG, styled by classes, so that no policy against inline styles breaks it."""
        paths = format_html_join(
            "",
            '<path class="line line-{0}" d="{1}"/><path class="dots line-{0}" d="{2}"/>',
            (
                (
                    number,
                    "".join(f"M{'L'.join(run)}" for run in runs if len(run) > 1),
                    "".join(f"M{run[0]}h0" for run in runs if len(run) == 1),  # a value between two unknown ones
                )
                for number, runs in enumerate(map(self._runs, self.lines))
            ),
        )
        grid = format_html_join(
            "", '<path class="grid" d="M0 {0}H{1}"/>', ((_y(share, 1.0), WIDTH) for share in (0.0, 0.5, 1.0))
        )
        dotted = format_html_join("", '<path class="running line-{0}" d="M{1}"/>', self._running_parts())
        return svg(self.words, grid + paths + dotted)

    def _running_parts(self) -> Iterator[tuple[int, str]]:
        """Yield the part of each line that leads to the minute that is not over."""
        for index, line in enumerate(self.lines if self.running else ()):
            places = range(max(0, self._full - 1), len(line.values))
            known = [(place, value) for place in places if (value := line.values[place]) is not None]
            if len(known) > 1:
                yield index, "L".join(self._point(place, value) for place, value in known)

    def _point(self, place: int, value: float) -> str:
        return f"{round(place * WIDTH / max(1, len(self.times) - 1), 1)} {_y(value, self.top)}"

    def _runs(self, line: Line) -> list[list[str]]:
        """Return the points of a line, in runs that end where a value is unknown; without the running minute."""
        runs: list[list[str]] = [[]]
        for place, value in enumerate(line.values[: self._full]):
            if value is None:
                runs.append([])
            else:
                runs[-1].append(self._point(place, value))
        return runs


def svg(words: str, content: SafeString) -> SafeString:
    """Return the SVG of a plot or of bars, with ``words`` as its description."""
    frame = '<svg class="plot" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    return format_html(frame, WIDTH, HEIGHT, words, content)


def _y(value: float, top: float) -> float:
    share = value / top if top > 0 else 0.0
    return round(HEIGHT - _BELOW - share * (HEIGHT - _ABOVE - _BELOW), 1)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the page; the pieces of a part come in one response, which the browser refreshes every ``every_s``."""

    name: str
    part: str
    label: Any
    every_s: int | None = None

    @property
    def template(self) -> str:
        return f"admin/salon_jobs/dashboard_{self.name}.html"


# Plots change by the minute.
_PIECES: Final = (
    Piece("tiles", "now", _("At a glance"), every_s=5),
    Piece("plots", "plots", _("Over time"), every_s=30),
    Piece("tables", "now", _("In detail")),
)
_PIECES_OF_STORE: Final = (Piece("store", "now", _("The store's jobs"), every_s=5),)


class DashboardAdmin(ReadOnlyAdmin):
    """Admin of the dashboard: a page of two parts, each of which the browser refreshes separately (``?part=``)."""

    has_rows_of_stores = True

    def get_urls(self) -> list[URLPattern]:
        """Return only the page: there are no rows to open."""
        return [each for each in super().get_urls() if each.name == "salon_jobs_dashboard_changelist"]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Return the page, or a part of it. At most 26 queries through the reader's alias."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        span = span_of(request)
        is_operator = sees_all_stores(request)
        pieces = _PIECES if is_operator else _PIECES_OF_STORE
        requested = [piece for piece in pieces if piece.part == request.GET.get("part")]
        context: dict[str, Any] = {
            "span": span,
            "spans": [(name, each.label) for name, each in SPANS.items()],
            "pieces": requested or pieces,
            "choice": CHOICE,
            "has": configured_parts(),
            "limited_to": None if is_operator else current_store_id(),
            **(extra_context or {}),
        }
        # "now" before "plots": a statement of the verdict brings the time along.
        for part in sorted({piece.part for piece in requested or pieces}):
            if part == "plots":
                context |= plots_of(request, span)
            else:
                context |= _now(request) if is_operator else _of_store(request)
        return self.page(request, f"dashboard{'_pieces' if requested else ''}", gettext("Dashboard"), **context)


def _now(request: HttpRequest) -> dict[str, Any]:
    using = reader(request)
    facts = Facts(using=using)
    live, relaying = facts.processes, facts.relaying
    names = {each.id: each.name for each in live}
    tasks = statistics.totals(queues.HOUR, using=using)
    return {
        "problems": problems(facts),
        "waiting": facts.waiting,
        "running": sum(process.running for process in live),
        "claimed": sum(process.claimed for process in live),
        "totals": facts.totals,
        "counted": relays.COUNTED,
        "down": sum(each.outage_since is not None and not each.paused for each in relaying.destinations),
        # Failing tasks first.
        "tasks": sorted(tasks, key=lambda task: (-task.outcomes["failed"], -task.outcomes["retried"], task.task)),
        "failing_stores": queues.failing_stores(using=using),
        "processes": live,
        "silent": sum(process.silent for process in live),
        "cron": [(entry, entry.is_late(facts.at)) for entry in facts.cron],
        "relaying": relaying,
        "owners": [
            Owner(
                owner if owner in names else None,
                names.get(owner, gettext("#%(id)s (gone)") % {"id": owner}),
                _ranges(partitions),
            )
            for owner, partitions in relaying.partitions.items()
        ],
        "unowned": _ranges(relaying.unowned),
        "parked": relays.parked(using=using),
        "updated_at": facts.at,
        "counted_until": statistics.counted_until(using=using),
    }


def _ranges(partitions: Sequence[int]) -> str:
    """Format partitions, which are sorted, as ranges: "0–3, 7"."""
    ranges: list[list[int]] = []
    for partition in partitions:
        if ranges and partition == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], partition]
        else:
            ranges.append([partition])
    return ", ".join("–".join(map(str, each)) for each in ranges)


def _of_store(request: HttpRequest) -> dict[str, Any]:
    using, store = reader(request), current_store_id()
    if store is None:  # otherwise as_reader has opened its context
        raise PermissionDenied
    return {
        "store_tasks": queues.tasks_of(store, using=using),
        "jobs_read": queues.LOOKED_AT,
        "parked": relays.parked(using=using),
        "updated_at": clock.now(using),
    }


def span_of(request: HttpRequest) -> str:
    """Return which of the spans the page shows."""
    span = request.GET.get("span", "hour")
    return span if span in SPANS else "hour"


def plots_of(request: HttpRequest, span: str, task: str | None = None, queue: str | None = None) -> dict[str, Any]:
    """Return the context for the template of plots: of all jobs, or those of a ``task`` or ``queue``."""
    steps = queues.history(SPANS[span], using=reader(request), task=task, queue=queue, with_running=True)
    times = tuple(step.at for step in steps)

    def plot(key: str, title: str, shown: Any, **lines: str) -> Plot:
        columns = [[getattr(step, field) for step in steps] for field in lines]
        return Plot(key, title, tuple(map(Line, lines.values(), columns)), times, shown, steps[-1].running)

    depth = plot("depth", gettext("Queued jobs"), number, waiting=gettext("all"), due=gettext("due"))
    return {
        "plots": (
            plot("throughput", gettext("Succeeded per minute"), number, succeeded=gettext("succeeded")),
            plot(
                "failures", gettext("Failures per minute"), number, retried=gettext("retried"), failed=gettext("failed")
            ),
            plot("latency", gettext("Queue latency"), about, wait_p50_s="p50", wait_p95_s="p95"),
            *((depth,) if task is None else ()),  # depths are counted by queue
        ),
        "from_at": times[0],
        "until_at": times[-1],
    }
