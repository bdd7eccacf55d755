"""Admin pages for processes, cron entries with their ticks, and fan-outs."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_noop, ngettext
from django.utils.translation import gettext_lazy as _

from salon_jobs.admin.actions import BATCH, Action, ActionAdmin, ActionForm, actions_of, log_changed, not_done
from salon_jobs.admin.base import ReadOnlyAdmin
from salon_jobs.admin.cells import (
    age_of,
    as_json,
    badge,
    below,
    count_of,
    is_whole,
    lines_of,
    next_tick,
    now_of,
    text_of,
    time_of,
)
from salon_jobs.admin.filters import EntryFilter
from salon_jobs.admin.reader import may, reader
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import CronInvalid, HeldUp, SalonJobsError
from salon_jobs.core.records import EnqueueAction
from salon_jobs.core.units import counted
from salon_jobs.dashboard.processes import MOST_HELD, cron, processes
from salon_jobs.jobs.fan_out import fan_out_progress
from salon_jobs.jobs.held import Patience
from salon_jobs.jobs.results import JobHandle
from salon_jobs.jobs.waiting import served_in_words
from salon_jobs.models import CronEntryState, CronTick, FanOutRecord, Job, Process
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.schedules.scheduler import job_of
from salon_jobs.words import ago, became_of, duration, instant, override_of, relative_time, who_paused


class ProcessAdmin(ReadOnlyAdmin):
    """Admin of processes, with their last heartbeat."""

    empty_hint = _("Start a worker: python manage.py runworker.")
    list_display = ("process", "serves", "running", "heartbeat", "age")
    fields = ("serves", "running", "heartbeat", "started", "supervisor")
    ordering = ("-heartbeat_at",)
    sortable_by = ()
    started = time_of("started_at", _("started"))
    age = age_of("started_at", _("started"))

    def described(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        """Add to each process the jobs that it holds."""
        at_work = {each.id: each for each in processes(using=reader(request))}
        for row in rows:
            row.at_work = at_work.get(row.pk)
        return rows

    @admin.display(description=_("process"))
    def process(self, row: Process) -> str:
        return str(row)

    @admin.display(description=_("queues"))
    def serves(self, row: Any) -> str:
        """Show the queues that a worker serves, and on how many threads."""
        if row.kind != "worker":
            return "-"
        said = ngettext("%(queues)s, %(threads)s thread", "%(queues)s, %(threads)s threads", row.concurrency)
        queues = served_in_words(row.queues) if row.queues else gettext("all queues")
        return said % {"queues": queues, "threads": f"{row.concurrency:,}"}

    @admin.display(description=_("running"))
    def running(self, row: Any) -> SafeString | str:
        """Count the jobs that a worker holds, with a link to them, and list those that run longest."""
        if row.kind != "worker" or row.at_work is None:
            return "-"
        if not row.at_work.held:
            return gettext("nothing")
        held, said = row.at_work.held, gettext("%(task)s for %(time)s")
        shown = ngettext("%(jobs)s job", "%(jobs)s jobs", held) % {"jobs": counted(held, MOST_HELD)}
        longest = ", ".join(said % {"task": job.task, "time": duration(job.for_s)} for job in row.at_work.jobs)
        return below(self.link_to_list(Job, shown, leased_by__exact=row.pk, state__exact="running"), longest)

    @admin.display(description=_("heartbeat"))
    def heartbeat(self, row: Process) -> SafeString:
        """Show the age of the last heartbeat, marked if the process is silent."""
        now = now_of(row)
        shown = ago(row.heartbeat_at, now)
        is_silent = now - row.heartbeat_at > conf.process_silent_after
        return format_html("{} {}", shown, badge("silent", "bad")) if is_silent else shown

    @admin.display(description=_("supervisor"))
    def supervisor(self, row: Process) -> SafeString | str:
        """Link to the process that started this one."""
        return self.link_to_process(row.supervisor_id, using=row._state.db)


class RunNow(Action):
    """Action that enqueues the jobs of cron entries or schedules at once, in addition to their ticks."""

    def start(self, row: Any, request: HttpRequest, patience: Patience) -> JobHandle:
        handle: JobHandle = self.verb.call([row.pk], row.pk, look=reader(request), patience=patience)
        return handle

    def run(self, model_admin: Any, request: HttpRequest, queryset: QuerySet[Any], form: ActionForm) -> None:
        """Enqueue a job for each row, log it, and link to it, up to the first row that is held."""
        model, patience = queryset.model, Patience()
        for row in queryset.order_by("pk")[:BATCH]:
            try:
                handle = self.start(row, request, patience)
            except HeldUp:
                raise
            except SalonJobsError as error:
                messages.warning(request, not_done(model, row, gettext(self.verb.done), error))
                continue
            log_changed(request, [row], f"run now: job {handle.id}")
            is_new = handle.action in (EnqueueAction.INSERTED, EnqueueAction.SUPERSEDED_RUNNING)
            done = gettext("{noun} {row}: added {job}.") if is_new else gettext("{noun} {row}: found a waiting {job}.")
            job: SafeString | str = gettext("job %(id)s") % {"id": handle.id}
            if may(request, "salon_jobs.view_job"):
                job = model_admin.link(Job, handle.id, job)
            noun = capfirst(model._meta.verbose_name)
            messages.success(request, format_html(done, noun=noun, row=row, job=job))


class CronEntryAdmin(ActionAdmin):
    """Admin of cron entries: when they run, the outcomes of their last ticks, and a button to run one now."""

    list_display = ("entry", "schedule", "next", "last", "result", "row_actions")
    list_display_links = ("entry",)
    fields = ("task", "schedule", "next", "payload", "next_ticks", "last_ticks", "backfill", "registered")
    registered = time_of("registered_at", _("first seen by a scheduler"))
    ordering = ("name",)
    sortable_by = ()
    search_fields = ("name__exact",)
    empty_hint = _("A scheduler records the declared entries when it starts: python manage.py runscheduler.")
    related = (CronTick,)
    actions = actions_of(CronEntryState, run_now=RunNow)

    def described(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        """Add to each row its declaration in this process, if any, its last run and its buttons."""
        declared = {entry.name: entry for entry in cron_entries.all()}
        last = {entry.name: entry for entry in cron(using=reader(request))}
        for row in rows:
            row.declared, row.ran, row.now = declared.get(row.pk), last.get(row.pk), now_of(row)
            row.in_effect = row.declared
            with suppress(CronInvalid):  # a line that no operator set
                row.in_effect = row.declared and row.declared.overridden(row.line)
        for row in super().described(rows, request):
            row.buttons = [action for action in row.buttons if row.line or action.name != "restore"]
        return rows

    def state_of(self, row: Any) -> str:
        return "unknown" if row.declared is None else "declared" if row.paused_at is None else "paused"

    @admin.display(description=_("entry"))
    def entry(self, row: Any) -> SafeString:
        """Name the entry, and below the task that it starts."""
        task = row.declared.task_name if row.declared and row.declared.task_name != row.pk else ""
        return below(row.pk, task)

    @admin.display(description=_("task"))
    def task(self, row: Any) -> str:
        return row.declared.task_name if row.declared else gettext(_NOT_DECLARED)

    @admin.display(description=_("schedule"))
    def schedule(self, row: Any) -> SafeString | str:
        """Show the cron line with its time zone."""
        if row.declared is None:
            return gettext(_NOT_DECLARED)
        expression = row.in_effect.expression
        shown = format_html("<code>{}</code> {}", expression.line, expression.timezone)
        return below(shown, override_of(row, row.declared.expression.line)) if row.line else shown

    @admin.display(description=_("payload"))
    def payload(self, row: Any) -> SafeString | str:
        """Show the payload that the next tick would have."""
        if row.declared is None:
            return "-"
        try:
            next_tick = row.in_effect.expression.next_after(row.now)
            return as_json(json.loads(job_of(row.declared, next_tick).payload), whole=is_whole(row))
        except SalonJobsError as error:
            return str(error)
        except Exception as error:  # the project's own function builds the payload, and may raise anything
            return gettext("its function raised %(error)s") % {"error": f"{type(error).__name__}: {error}"}

    @admin.display(description=_("missed ticks"))
    def backfill(self, row: Any) -> SafeString | str:
        """Show how late a missed tick still fires, and whether jobs may overlap."""
        if not row.declared:
            return "-"
        late = gettext("run if they are at most %(time)s late; older ones are lost") % {
            "time": duration(row.declared.window.total_seconds())
        }
        overlap = "" if row.declared.overlap else gettext("a tick is skipped while the last one's job is not done")
        return below(late, overlap) if overlap else late

    @admin.display(description=_("next"))
    def next(self, row: Any) -> SafeString | str:
        if row.paused_at is not None:
            return below(badge("paused", "warn"), who_paused(row))
        if row.ran is None or row.ran.next_at is None:
            return "-"
        return next_tick(row.ran.next_at, row.now)

    @admin.display(description=_("last tick"))
    def last(self, row: Any) -> SafeString | str:
        return ago(row.ran.last_tick, row.now) if row.ran and row.ran.last_tick else "-"

    @admin.display(description=_("result"))
    def result(self, row: Any) -> SafeString | str:
        """Show the outcome of the last tick's job, with a link to it while it exists."""
        if row.ran is None:
            return "-"
        kind = "bad" if row.ran.failed else "good" if row.ran.result.startswith("succeeded") else "quiet"
        shown = badge(became_of(row.ran.result), kind)
        return shown if row.ran.job_id is None else self.link(Job, row.ran.job_id, shown)

    @admin.display(description=_("next ticks"))
    def next_ticks(self, row: Any) -> SafeString | str:
        """List the next five ticks."""
        if row.declared is None:
            return gettext(_NOT_DECLARED)
        now, ticks = row.now, list[datetime]()
        while len(ticks) < _TICKS_AHEAD:
            ticks.append(row.in_effect.expression.next_after(ticks[-1] if ticks else now))
        return lines_of(f"{instant(tick)}, {relative_time(tick, now)}" for tick in ticks)

    @admin.display(description=_("last ticks"))
    def last_ticks(self, row: Any) -> SafeString | str:
        """List the last ten ticks, with the outcomes of their jobs."""
        using = row._state.db
        ticks = list(CronTick.objects.using(using).filter(entry=row.pk).order_by("-tick_at")[:_TICKS_BACK])
        jobs = Job.objects.using(using).in_bulk([tick.job_id for tick in ticks if tick.job_id is not None])
        lines: list[SafeString] = []
        for tick in ticks:
            job = jobs.get(tick.job_id or 0)
            became = ": ".join(filter(None, (job.state, job.reason))) if job else tick.outcome
            shown = became_of(became) if job is None else self.link(Job, job.pk, became_of(became))
            lines.append(format_html("{}: {}", instant(tick.tick_at), shown))
        return lines_of(lines) if lines else gettext("none yet")


_NOT_DECLARED = gettext_noop("not declared in this process")
_TICKS_AHEAD = 5
_TICKS_BACK = 10


class CronTickAdmin(ReadOnlyAdmin):
    """Admin of fired cron ticks, newest first."""

    is_internal = True
    empty_hint = _("A scheduler fires them: python manage.py runscheduler.")
    list_display = ("entry", "tick", "fired", "job_link")
    fields = list_display
    tick = time_of("tick_at", _("tick"))
    fired = time_of("fired_at", _("fired"))
    list_filter = (EntryFilter,)
    sortable_by = ()


class FanOutAdmin(ReadOnlyAdmin):
    """Admin of fan-outs, newest first; a fan-out's page counts its jobs."""

    part = "tenants"
    is_internal = True
    empty_hint = _("fan_out() adds a job of a store task for every store.")
    list_display = ("name", "added", "waiting", "paused_stores", "age")
    fields = ("task", "label", "progress", "inserted", "waiting", "paused_stores", "of_tick", "created")
    help_texts: ClassVar = {"inserted": _("Jobs added")}
    sortable_by = ()
    waiting = count_of("kept", _("already queued"))
    paused_stores = count_of("paused", _("paused stores"))
    of_tick = time_of("tick", _("cron tick"))
    added = text_of("inserted", _("jobs added"))
    created = time_of("created_at", _("added"))
    age = age_of("created_at", _("added"))

    @admin.display(description=_("fan-out"))
    def name(self, record: FanOutRecord) -> SafeString:
        """Name the fan-out by its task, and below by its number and label."""
        return below(record.task, f"#{record.pk}", record.label)

    @admin.display(description=_("progress"))
    def progress(self, record: FanOutRecord) -> SafeString:
        """Count the jobs, with a link to them."""
        counts = fan_out_progress(record.pk)
        said = [gettext("%(done)s of %(total)s done") % {"done": counts.done, "total": counts.total}]
        said += [gettext("%(jobs)s failed") % {"jobs": counts.failed}] if counts.failed else []
        said += [gettext("%(jobs)s cancelled") % {"jobs": counts.cancelled}] if counts.cancelled else []
        return self.link_to_list(Job, ", ".join(said), fan_out_id__exact=record.pk)
