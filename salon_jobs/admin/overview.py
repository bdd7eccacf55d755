"""Admin page of one task, queue or store: its rate, failures, waits and durations, with its limits and triggers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from salon_jobs.admin.cells import scope_name
from salon_jobs.admin.dashboard import HEIGHT, WIDTH, plots_of, span_of, svg
from salon_jobs.admin.reader import may, reader, sees_all_stores
from salon_jobs.conf import settings as conf
from salon_jobs.core.metrics import BOUNDS_S, BUCKETS, percentile
from salon_jobs.core.records import StoreId
from salon_jobs.dashboard.queues import LOOKED_AT, SPANS
from salon_jobs.dashboard.stores import store_at_work
from salon_jobs.db import clock
from salon_jobs.jobs import registry, statistics
from salon_jobs.jobs.limits import ListedLimit, list_limits
from salon_jobs.jobs.waiting import serves
from salon_jobs.models import Limit, Process
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.words import about, duration, instant, pause_of, rate_text

# Bars of a trend, and the possible length of each.
_TREND: Final = 30
_STEPS: Final = (*(timedelta(minutes=each) for each in (2, 10, 60, 360)), *(timedelta(days=each) for each in (1, 7)))
# Fewer bars than this would look like blocks.
_LEAST_BARS: Final = 12


def bars(counts: Sequence[int], labels: Sequence[str], words: str) -> SafeString:
    """Return bars as SVG, styled by classes, so that no policy against inline styles breaks it."""
    width, top = WIDTH / len(counts), max(counts) or 1
    drawn = (
        (
            round(place * width + 1, 1),
            round(HEIGHT * (1 - count / top), 1),
            round(width - 2, 1),
            round(HEIGHT * count / top, 1),
            f"{label}: {count:,}",
        )
        for place, (count, label) in enumerate(zip(counts, labels, strict=True))
    )
    bar = '<rect class="bar" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
    return svg(words, format_html_join("", bar, drawn))


@dataclass(frozen=True, slots=True)
class Histogram:
    """Histogram of waits or durations, in buckets of half a doubling, from the first nonempty one to the last."""

    key: str
    title: str
    counts: list[int]
    most_s: float | None

    @property
    def words(self) -> str:
        """A description of the histogram."""
        if not (runs := sum(self.counts)):
            return gettext("No data yet")
        p50, p95 = (about(percentile(self.counts, share, self.most_s)) for share in (0.5, 0.95))
        said = ngettext("%(runs)s run: p50 %(p50)s, p95 %(p95)s", "%(runs)s runs: p50 %(p50)s, p95 %(p95)s", runs)
        shown = said % {"runs": f"{runs:,}", "p50": p50, "p95": p95}
        if self.most_s is None:
            return shown
        return gettext("%(runs)s, longest %(time)s") % {"runs": shown, "time": duration(self.most_s)}

    @property
    def ends(self) -> tuple[str, str]:
        """The shortest and the longest time of the bars."""
        first, last = self._shown[0], self._shown[-1]
        return duration(BOUNDS_S[first - 1] if first else 0.0), duration(BOUNDS_S[min(last, len(BOUNDS_S) - 1)])

    @property
    def svg(self) -> SafeString:
        """The bars as SVG; each with the number of runs and their time."""
        under = gettext("under %(time)s")
        bounds = [under % {"time": duration(bound)} for bound in BOUNDS_S] + [gettext("longer")]
        taken = slice(self._shown.start, self._shown.stop)
        return bars(self.counts[taken], bounds[taken], f"{self.title}. {self.words}.")

    @property
    def _shown(self) -> range:
        taken = [bucket for bucket, count in enumerate(self.counts) if count] or [0]
        first = max(0, min(taken[0], len(self.counts) - _LEAST_BARS))
        return range(first, max(taken[-1] + 1, first + _LEAST_BARS))


def trend(times: Sequence[datetime], until: datetime) -> dict[str, Any]:
    """Return bars that count these times, newest first, in each of thirty steps up to now.

    A step is a round time, as short as it can be.
    """
    age = until - times[-1] if times else timedelta(0)
    step = next((each for each in _STEPS if each * _TREND > age), _STEPS[-1])
    found = Counter(int((until - at) / step) for at in times)
    places = range(_TREND - 1, -1, -1)
    counts, labels = [found[place] for place in places], [instant(until - step * (place + 1)) for place in places]
    said = gettext("Failures in each %(step)s up to now: %(sum)s in all, at most %(most)s")
    words = said % {"step": duration(step.total_seconds()), "sum": sum(counts), "most": max(counts)}
    return {"svg": bars(counts, labels, words), "words": words, "from_at": labels[0], "until_at": instant(until)}


def overview(request: HttpRequest, kind: str, name: str) -> dict[str, Any]:
    """Return what the page of a task or queue shows, from statistics and limits: it reads no job. Role: operator."""
    span, of, using = span_of(request), {kind: name}, reader(request)
    # For a week, the histograms of all tasks take twice as long as the rest of the page.
    counted = "day" if span == "week" else span
    runs = statistics.totals(SPANS[counted].length, using=using, **of)

    def histogram(key: str, title: str, column: str, most: str) -> Histogram:
        counts = [sum(bucket) for bucket in zip(*(getattr(each, column) for each in runs), strict=True)]
        longest: list[float] = [value for each in runs if (value := getattr(each, most)) is not None]
        return Histogram(key, title, counts or [0] * BUCKETS, max(longest, default=None))

    return {
        **plots_of(request, span, **of),
        "kind": kind,
        "other": "queue" if kind == "task" else "task",
        "of": of,
        "span": span,
        "spans": [(name, each.label) for name, each in SPANS.items()],
        "runs": runs,
        "counted": SPANS[counted].label,
        "histograms": (
            histogram("waits", gettext("How long jobs had been due when they began"), "waits", "wait_max_s"),
            histogram("durations", gettext("How long runs took"), "durations", "duration_max_s"),
        ),
        "facts": list(_facts(kind, name, using)),
        "counted_until": statistics.counted_until(using=using),
    }


def _facts(kind: str, name: str, using: str) -> Iterator[tuple[str, str, str]]:
    """Yield the facts of a task or queue, with the list and the search to which each leads."""
    declared = [each for each in registry.tasks() if name == (each.name if kind == "task" else each.options.queue)]
    if kind == "task":
        yield (declared[0].origin if declared else gettext("It is not declared in this process.")), "", ""
    else:
        alive = clock.now(using) - conf.process_silent_after
        workers = Process.objects.using(using).filter(kind="worker", heartbeat_at__gt=alive)
        served = sum(serves(each, name) for each in workers.values_list("queues", flat=True)[:1000])
        said = ngettext("Served by %(count)s process", "Served by %(count)s processes", served) % {"count": served}
        yield said if served else gettext("No worker serves it"), "process", ""
    for limit in list_limits(using=using):
        is_key = kind == "task" and limit.kind == "key" and limit.name.startswith(f"{name}:")
        if is_key or (limit.kind, limit.name) == (kind, name):
            yield _limit_text(limit), "limit", name
    for task in sorted(each.name for each in declared):
        for entry in cron_entries.all():
            if entry.task_name == task:
                yield gettext("Cron entry %(name)s") % {"name": entry.name}, "cronentrystate", entry.name
    if kind == "task":
        yield gettext("Schedules of this task"), "schedule", name


def _limit_text(limit: ListedLimit) -> str:
    parts = [pause_of(limit)] if limit.paused else []
    if limit.max_concurrency is not None:
        parts.append(gettext("%(most)s at once") % {"most": f"{limit.max_concurrency:,}"})
    if limit.rate is not None:
        parts.append(rate_text(limit.rate))
    is_any = limit.kind == "store" and limit.name == "*"
    scope = gettext("each store") if is_any else scope_name(limit.kind, limit.name)
    return gettext("Limit of %(what)s: %(limit)s") % {"what": scope, "limit": ", ".join(parts) or gettext("none")}


def store_page(request: HttpRequest, store: StoreId) -> dict[str, Any]:
    """Return what the page of a store shows, of its newest jobs. Role: operator; web, with that store."""
    using = reader(request)
    work = store_at_work(store, using=using)
    is_operator = sees_all_stores(request)
    limits = list_limits(using=using) if is_operator else []
    own = Limit.objects.using(using).filter(kind=Limit.Kind.STORE, name=str(store)).values_list("pk", flat=True)
    return {
        "store": str(store),
        "work": work,
        "jobs_read": LOOKED_AT,
        "waits": Histogram(
            "waits", gettext("How long jobs had been due when they began"), work.waits, work.longest_wait_s
        ),
        "facts": [_limit_text(each) for each in limits if each.kind == "store" and each.name in (str(store), "*")],
        "limit": own.first() if is_operator and may(request, "salon_jobs.view_limit") else None,
        "sees_all": is_operator,
        "may_limit": is_operator and may(request, "salon_jobs.add_limit"),
        "updated_at": clock.now(using),
    }
