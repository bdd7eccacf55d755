"""Admin page of schedules that are rows, with their history."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.admin.actions import BATCH, Action, ActionAdmin, ActionForm, actions_of, log_changed, user_name
from salon_jobs.admin.base import reader
from salon_jobs.admin.cells import badge, below, json_of, lines_of, time_of
from salon_jobs.core.errors import SalonJobsError
from salon_jobs.core.units import duration
from salon_jobs.dashboard.labels import ago, instant, who_paused
from salon_jobs.db.statements import rows as rows_of
from salon_jobs.models import Job, Schedule
from salon_jobs.schedules.stored import run_schedule
from salon_jobs.tenancy.context import tenant_context

_HISTORY = 20


class RunScheduleNow(Action):
    """Action that enqueues the jobs of schedules at once, as their stores, in addition to their ticks."""

    def run(self, model_admin: Any, request: HttpRequest, queryset: QuerySet[Schedule], form: ActionForm) -> None:
        """Enqueue a job for each schedule, log it, and link to it."""
        for row in queryset.order_by("pk")[:BATCH]:
            try:
                with nullcontext() if row.store_id is None else tenant_context(row.store_id):
                    handle = run_schedule(row.pk, by=user_name(request))
            except SalonJobsError as error:
                messages.warning(request, f"Schedule {row.key} was not run: {error}.")
                continue
            log_changed(request, [row], f"run now: job {handle.id}")
            job = model_admin.link(Job, handle.id, f"job {handle.id}")
            messages.success(request, format_html("Schedule {}: {}.", row.key, job))


class ScheduleAdmin(ActionAdmin):
    """Admin of schedules: when they are due, what became of their last ticks, and buttons to change them."""

    has_rows_of_stores = True
    list_display = ("name", "store", "due", "next", "last", "row_actions")
    list_display_links = ("name",)
    fields = ("task", "store", "due", "payload_shown", "next", "options", "history", "created", "changed")
    search_fields = ("key__exact", "task__exact")
    empty_hint = "Your code adds them: salon_jobs.schedule(…)."
    deferred = ("payload",)
    actions = actions_of(Schedule, run_now=RunScheduleNow)
    payload_shown = json_of("payload", "payload")
    created = time_of("created_at", "added")
    changed = time_of("changed_at", "last changed")

    def described(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        """Give each row its last ticks and its buttons."""
        for row in rows:
            row.history, row.now = [], datetime.now(UTC)
        by_id = {row.pk: row for row in rows}
        # A page has one row, a list needs of each only the last tick.
        asked = {"ids": list(by_id), "ticks": _HISTORY if len(rows) == 1 else 1}
        for id_, *tick in rows_of("schedule_results", asked, using=reader(request)):
            by_id[id_].history.append(tick)
        return super().described(rows, request)

    def state_of(self, row: Any) -> str:
        return "active" if row.paused_at is None else "paused"

    @admin.display(description="schedule")
    def name(self, row: Any) -> SafeString:
        """Name the schedule by its key, and below the task that it starts."""
        return below(row.key, row.task)

    @admin.display(description="due")
    def due(self, row: Any) -> SafeString | str:
        """Show the cron line with its time zone, or the period."""
        if row.every is not None:
            return f"every {duration(row.every.total_seconds())}"
        return format_html("<code>{}</code> {}", row.line, row.timezone)

    @admin.display(description="next")
    def next(self, row: Any) -> SafeString | str:
        if row.paused_at is not None:
            return below(badge("paused", "warn"), who_paused(row))
        return ago(row.next_at, row.now)

    @admin.display(description="options")
    def options(self, row: Any) -> SafeString:
        """Say how late a tick fires, by how much jobs are delayed, and whether they may overlap."""
        lines = [f"missed ticks still run for up to {duration(row.catch_up.total_seconds())}"]
        if row.jitter:
            lines.append(f"jobs are delayed by up to {duration(row.jitter.total_seconds())}")
        if not row.overlap:
            lines.append("a tick is skipped while the last one's job is not done")
        return lines_of(lines)

    @admin.display(description="last tick")
    def last(self, row: Any) -> SafeString | str:
        """Show what became of the last tick, with a link to its job while it exists."""
        if not row.history:
            return "-"
        [tick_at, by_hand, _, job_id, outcome] = row.history[0]
        kind = "bad" if outcome.startswith(("failed", "missed")) else "good" if outcome == "succeeded" else "quiet"
        shown = badge(outcome or _GONE, kind)
        when = format_html("{}{}", ago(tick_at, row.now), " by hand" if by_hand else "")
        return below(shown if job_id is None else self.link(Job, job_id, shown), when)

    @admin.display(description="history")
    def history(self, row: Any) -> SafeString | str:
        """List the last ticks and the runs by hand, newest first, with what became of their jobs."""
        lines: list[SafeString] = []
        for tick_at, by_hand, run_by, job_id, outcome in row.history:
            became = outcome or _GONE
            shown = became if job_id is None else self.link(Job, job_id, became)
            who = f", run now by {run_by or 'code'}" if by_hand else ""
            lines.append(format_html("{}{}: {}", instant(tick_at), who, shown))
        return lines_of(lines) if lines else "none yet"


_GONE = "no longer recorded"
