"""Writes what a job's own page shows: errors, retries ahead, where it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

from django.db.models import Model
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from salon_jobs.admin.values import instant
from salon_jobs.conf import settings as conf
from salon_jobs.jobs.retries import Retry
from salon_jobs.jobs.retries import retries_ahead as reckon
from salon_jobs.models import CronTick, FanOutRecord, Job, JobError
from salon_jobs.schedule.find import tick_of

_SHOWN = 50
_SUMMARY = 200
_TRACE_ID = re.compile(r"\b[0-9a-f]{32}\b")


def errors(job: Job) -> SafeString | str:
    """Write the newest fifty errors, the newest open, each with its traceback."""
    rows = JobError.objects.using(job._state.db).filter(job_id=job.pk).order_by("-id")[:_SHOWN]
    blocks = [
        (SafeString("" if number else " open"), error.attempt, instant(error.occurred_at),
         error.error_class, f" ({error.code})" if error.code else "", *_short(error.message),
         error.traceback or "no traceback: the process died")
        for number, error in enumerate(rows)
    ]  # fmt: skip
    if not blocks:
        return "none"
    template = (
        '<details{} class="salon-jobs-error"><summary>Attempt {} · {} · <strong>{}</strong>{}: {}</summary>'
        '<p>{}</p><pre class="salon-jobs-text">{}</pre></details>'
    )
    return format_html("<div>{}</div>", format_html_join("", template, blocks))


def ahead(job: Job) -> SafeString | str:
    """Write between which instants each of the next attempts becomes due, if all before it fail at once."""
    retries = reckon(job, timezone.now())
    if not retries:
        return "none"
    lines = [(f"Attempt {retry.attempt}: {_span(retry)}",) for retry in retries]
    if (left := job.max_attempts - retries[-1].attempt) > 0:
        lines.append((f"and {left:,} more",))
    return format_html("<div>{}</div>", format_html_join("", "<div>{}</div>", lines))


def origin(job: Job, address_of: Callable[[type[Model], object], str]) -> SafeString | str:
    """Link to the fan-out that added the job, or to the ticks of the cron entry whose tick did."""
    if job.fan_out_id is not None:
        url = address_of(FanOutRecord, job.fan_out_id)
        return format_html('<a href="{}">fan-out {}</a>', url, job.fan_out_id)
    tick = tick_of(job, using=job._state.db or conf.reader_database)
    if tick is None:
        return "-"
    url = address_of(CronTick, tick.pk)
    return format_html('<a href="{}">cron entry {}</a> at {}', url, tick.entry, instant(tick.tick_at))


def trace(job: Job) -> SafeString | str:
    """Link to the trace that the job continues, by ``TRACE_LINK``; without it, write the trace's id."""
    kept: object = job.trace
    headers = cast("dict[str, str]", kept) if isinstance(kept, dict) else {}
    found = _TRACE_ID.search(f"{headers.get('traceparent', '')} {headers.get('sentry-trace', '')}")
    if found is None:
        return "-"
    if conf.trace_link is None:
        return found[0]
    return format_html('<a href="{}">{}</a>', conf.trace_link.replace("{trace_id}", found[0]), found[0])


def _short(message: str) -> tuple[str, str]:
    """Return the message as a summary, and the whole of it where the summary leaves something out."""
    summary = Truncator(message).chars(_SUMMARY)
    return summary, "" if summary == message else message


def _span(retry: Retry) -> str:
    earliest, latest = instant(retry.earliest), instant(retry.latest)
    return earliest if earliest == latest else f"{earliest} to {latest}"
