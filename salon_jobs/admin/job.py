"""Admin pages for jobs: the list, one job, and errors grouped by cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar, cast

from django.contrib import admin, messages
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext, gettext_noop, ngettext
from django.utils.translation import gettext_lazy as _

from salon_jobs.access.store_names import searched_names, stores_called
from salon_jobs.admin import filters
from salon_jobs.admin.actions import ActionAdmin
from salon_jobs.admin.base import ASIDE, MOST, OrderedList, explained, gone, id_or_other
from salon_jobs.admin.cells import (
    as_json,
    badge,
    below,
    cell_with_lines,
    duration_of,
    is_whole,
    lines_of,
    now_of,
    payload_of,
    text,
    text_of,
    time_of,
)
from salon_jobs.admin.flow_picture import picture
from salon_jobs.admin.job_actions import JOB_ACTIONS
from salon_jobs.admin.overview import overview, store_page, trend
from salon_jobs.admin.reader import as_reader, may, operators_only, own_store, reader, sees_all_stores
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.error_report import storable
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.records import JobState
from salon_jobs.core.text import short_repr
from salon_jobs.core.units import LATEST, counted, error_name
from salon_jobs.dashboard.jobs import BY_OPERATORS, JobRow, Origin, errors_of, job_page, job_rows, seconds_between
from salon_jobs.dashboard.tasks import declared_tasks
from salon_jobs.jobs import registry, search
from salon_jobs.jobs.flow_summary import FlowSummary, Stage
from salon_jobs.jobs.ordered import PlaceInOrder
from salon_jobs.jobs.waiting import WaitReason
from salon_jobs.models import FanOutRecord, Job, JobError, JobResult, Process
from salon_jobs.tenancy.active import current_store_id
from salon_jobs.tenancy.names import store_name, store_words
from salon_jobs.words import ago, duration, exact, instant, relative_time, scope_words

_SHOWN = 50
# Lines of a traceback that are not folded.
_LAST_LINES = 12
_SUMMARY = 200
_ARGUMENTS = 120
_FINGERPRINT = re.compile(r"-?[0-9]{1,19}")
# The number of a job as people type it in the search.
_TYPED = re.compile(r"#?([0-9]{1,18})")
_TRACE_ID = re.compile(r"\b[0-9a-f]{32}\b")


def format_attempts(known: JobRow, errors: Sequence[JobError]) -> SafeString | str:
    """Format the attempts with their errors, the newest open: time, duration, place, traceback."""
    job, using = known.job, known.job._state.db
    ids = [each.worker_id for each in errors if known.sees_all and each.worker_id is not None]
    names = {each.pk: str(each) for each in Process.objects.using(using).filter(pk__in=ids)}
    blocks: list[SafeString] = []
    if job.state in (JobState.RUNNING, JobState.SUCCEEDED):
        is_running = job.state == str(JobState.RUNNING)
        said = gettext("claimed %(at)s") if is_running else gettext("began %(at)s")
        facts = [
            said % {"at": instant(job.started_at)},
            gettext("%(time)s after it was due") % {"time": _between(job.run_at, job.started_at)},
            _ran_for(None if is_running else seconds_between(job.started_at, job.finished_at)),
        ]
        attempt, state = _attempt(job.attempts + is_running), badge(job.state, _BADGES[job.state])
        blocks.append(format_html("<p>{} {}<small>{}</small></p>", attempt, state, " · ".join(filter(None, facts))))
    for number, error in enumerate(errors):
        before = errors[number + 1] if number + 1 < len(errors) else None
        began, ended = error.started_at, error.occurred_at
        facts = [gettext("ended %(at)s") % {"at": instant(ended)}]
        if began is not None:
            facts = [gettext("began %(at)s") % {"at": instant(began)}, "", _ran_for(seconds_between(began, ended))]
            if before is not None:
                after = {"time": _between(before.occurred_at, began), "number": before.attempt}
                facts[1] = gettext("%(time)s after attempt %(number)s ended") % after
            elif error.attempt == 1:
                facts[1] = gettext("%(time)s after it was enqueued") % {"time": _between(job.created_at, began)}
        if known.sees_all and error.worker_id is not None:
            facts.append(gettext("in %(process)s") % {"process": names.get(error.worker_id, gone(error.worker_id))})
        summary = Truncator(error.message).chars(_SUMMARY)
        blocks.append(
            format_html(
                '<details{} class="salon-jobs-error"><summary>{} · <strong>{}</strong>{}{}<small>{}</small>'
                "</summary><p>{}</p>{}{}</details>",
                SafeString("" if number else " open"),
                gettext("death") if error.is_death else _attempt(error.attempt),
                error_name(error.error_class),
                f" ({error.code})" if error.code else "",
                f": {summary}" if summary else "",
                " · ".join(filter(None, facts)),
                "" if summary == error.message else error.message,
                _frames(error.traceback or gettext("no traceback: the process died")),
                format_html("<p>{}</p>{}", gettext("It logged:"), text(error.log)) if error.log else "",
            )
        )
    return format_html('<div class="salon-jobs-attempts">{}</div>', SafeString("".join(blocks))) if blocks else "-"


def _frames(traceback: str) -> SafeString:
    """Format a traceback by its last lines, those of the error and the frames next to it; the others are folded."""
    lines = traceback.split("\n")
    last = max(0, len(lines) - _LAST_LINES)
    frames = (place for place in range(last, len(lines)) if lines[place].startswith("  File "))
    first = next(frames, last) if last else 0
    shown = format_html('<pre class="salon-jobs-text">{}</pre>', "\n".join(lines[first:]))
    if not first:
        return shown
    said = ngettext("%(count)s earlier line", "%(count)s earlier lines", first) % {"count": f"{first:,}"}
    before = "\n".join(lines[:first])
    return format_html(
        '<details><summary>{}</summary><pre class="salon-jobs-text">{}</pre></details>{}', said, before, shown
    )


def _attempt(number: int) -> str:
    return gettext("Attempt %(number)s") % {"number": number}


def _ran_for(seconds: float | None) -> str:
    return "" if seconds is None else gettext("ran %(time)s") % {"time": duration(seconds)}


def _between(first: datetime, last: datetime) -> str:
    return duration(seconds_between(first, last))


_ENDED = (JobState.SUCCEEDED.value, JobState.FAILED.value, JobState.CANCELLED.value)
# Badges of each state, and of the texts that ``timeliness`` adds; translated where they are shown.
_BADGES = {
    gettext_noop("queued"): "waiting",
    gettext_noop("scheduled"): "waiting",
    gettext_noop("held"): "waiting",
    gettext_noop("retrying"): "warn",
    gettext_noop("running"): "busy",
    gettext_noop("cancelling"): "busy",
    gettext_noop("succeeded"): "good",
    gettext_noop("failed"): "bad",
    gettext_noop("timed out"): "bad",
    gettext_noop("cancelled"): "quiet",
    gettext_noop("expired"): "quiet",
}


class JobList(OrderedList):
    """List of jobs with their shortened arguments."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        jobs: list[Any] = list(self.result_list)
        shown = self.root_queryset.filter(pk__in=[job.pk for job in jobs])
        listed = search.listed_arguments(shown) if jobs else {}
        for job in jobs:
            job.given = listed.get(job.pk, "")


_TIMES = ("enqueued_at", "due_at", "claimed", "started", "ended", "waited", "took")


class JobAdmin(ActionAdmin):
    """Admin of jobs by state, task, queue, store, time and error; a job's page shows everything known about it."""

    class Media(ActionAdmin.Media):
        js: ClassVar = ["salon_jobs/live.js"]

    has_rows_of_stores = True
    empty_hint = _(
        "Jobs are enqueued by your code; those that succeed are deleted, unless RETAIN_SUCCEEDED keeps them."
    )
    related = (FanOutRecord,)
    linked_by = ("fan_out_id__exact", "leased_by__exact", "state__exact")
    change_list_template = "admin/salon_jobs/jobs.html"
    list_class = JobList
    list_display = ("job", "progress", "detail", "enqueued", "row_actions")
    list_display_links = None
    sortable_by = ("job",)
    list_filter = (
        filters.RetryingFilter,
        filters.KeyFilter,
        filters.ErrorGroupFilter,
        filters.ErrorClassFilter,
        filters.EndedFilter,
        filters.EnqueuedFilter,
        filters.FlowFilter,
        filters.QueueFilter,
        filters.TaskFilter,
        filters.StoreFilter,
    )
    search_fields = ("id__exact", "job_key__exact", "store_id__exact")
    actions = tuple(JOB_ACTIONS.values())
    fieldsets = (
        (_("State"), {"fields": ("status", "waiting", "how_far", "failure", "outcome", "attempt_count", "process")}),
        (_("Attempts"), {"fields": ("errors", "logged", "steps", "retries_ahead", "flow", "order")}),
        (_("Payload"), {"fields": ("shown_payload",), "classes": (ASIDE,)}),
        (_("Task"), {"fields": ("task_link", "queue_link", "store_link", "origin", "then"), "classes": (ASIDE,)}),
        (_("Times"), {"fields": (*_TIMES, "asked_to_end", "expires", "of_tick"), "classes": (ASIDE,)}),
        (
            _("Details"),
            {"fields": ("priority", "of_job_key", "of_concurrency_key", "trace_link"), "classes": ("collapse", ASIDE)},
        ),
    )
    help_texts: ClassVar = {"of_concurrency_key": _("Jobs of a task with the same key share a limit")}
    deferred = ("payload", "log")
    shown_payload = payload_of(_("payload"))
    enqueued_at = time_of("created_at", _("enqueued"))
    ended = time_of("finished_at", _("ended"))
    asked_to_end = time_of("cancel_requested_at", _("cancellation requested"))
    expires = time_of("expires_at", _("expires"))
    of_tick = time_of("tick", _("cron tick"))
    how_far = text_of("known.progress", _("progress"))
    failure = text_of("known.error", _("last error"))
    attempt_count = text_of("known.attempts", _("attempts"))
    then = text_of("known.then", _("then"))
    claimed = time_of("known.claimed_at", _("claimed"))
    started = time_of("known.began_at", _("started"))
    took = duration_of("known.ran_s", _("ran for"))
    waited = duration_of("known.waited_s", _("waited in the worker"))

    @property
    def search_help_text(self) -> str:  # type: ignore[override]
        said = gettext(
            "The full number or key of a job, a task, or a class of errors; or, of the newest %(newest)s jobs,"
            " argument=value or part of a payload (of up to %(kilobytes)s KB) or of an error"
        )
        if searched_names():
            said = gettext(
                "The full number or key of a job, a task, a class of errors, or a store; or, of the newest %(newest)s"
                " jobs, argument=value or part of a payload (of up to %(kilobytes)s KB) or of an error"
            )
        elif conf.store_model:
            said = gettext(
                "The full number or key of a job, a task, a class of errors, or the ID of a store; or, of the newest"
                " %(newest)s jobs, argument=value or part of a payload (of up to %(kilobytes)s KB) or of an error"
            )
        return said % {"newest": f"{search.SEARCHED:,}", "kilobytes": f"{search.LARGEST_READ // 1024:,}"}

    def described(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        """Add to each job the facts in a list, its buttons, and the address of its page, which leads back here."""
        filters_here: dict[str, Any] = {"preserved_filters": self.get_preserved_filters(request), "opts": self.opts}
        for known in job_rows(rows, using=reader(request), sees_all=sees_all_stores(request)):
            known.job.known = known
            known.job.address = add_preserved_filters(filters_here, self.address_of(Job, known.job.pk))
        return super().described(rows, request)

    def of_page(self, row: Any, request: HttpRequest) -> Any:
        """Add to the job all known facts."""
        row.known = job_page(row, using=reader(request), sees_all=sees_all_stores(request), most=_SHOWN)
        return super().described([row], request)[0]

    def get_list_display(self, request: HttpRequest) -> Any:
        """For ended jobs, show the time of their end first."""
        has_ended = request.GET.get("state__exact") in _ENDED
        return ["finished" if each == "enqueued" and has_ended else each for each in super().get_list_display(request)]

    def get_sortable_by(self, request: HttpRequest) -> Any:
        return ("job", "finished") if self._is_by_end(request) else self.sortable_by

    def get_ordering(self, request: HttpRequest) -> Any:
        """Sort by the latest end, where an index has it: among all jobs of a state."""
        return ("-finished_at", "-id") if self._is_by_end(request) else self.ordering

    @staticmethod
    def _is_by_end(request: HttpRequest) -> bool:
        is_whole = request.GET.keys() <= {"state__exact", "o", "p", "e"}
        return is_whole and sees_all_stores(request) and request.GET.get("state__exact") in _ENDED

    def matches(self, request: HttpRequest, term: str) -> Q:
        """Match the number, store or key, a task, class of errors or name of a store, whichever is the first possible.

        Each by an index; else texts of the newest jobs.
        """
        using = reader(request)
        whole = search.with_key(term) | id_or_other(term.removeprefix("#"), "store_id", store_key().parse)
        if term.startswith("#") or Job.objects.using(using).filter(whole).exists():
            return whole
        if (named := self._named(request, term)) is not None:
            return named
        found = search.ids_with_text(term, using=using)
        if not found.ended:
            said = gettext("The search through the newest jobs was given up after %(time)s, and there may be others.")
            messages.warning(request, said % {"time": duration(search.LONGEST_SEARCH.total_seconds())})
        return Q(pk__in=found.ids)

    def _named(self, request: HttpRequest, term: str) -> Q | None:
        """Return the jobs with this name: of a declared task, that failed with a class of errors, or of a store."""
        if term in registry.task_names():
            return search.in_every_state(Q(task=term))
        classes = filters.classes_of_failures(request)
        if named := [each for each in classes if term in (each, error_name(each), each.rpartition(".")[2])]:
            return Q(state=JobState.FAILED, error_class__in=named)
        try:
            stores = {} if own_store(request) else stores_called(term)
        except ConfigurationError as error:
            messages.warning(request, f"{capfirst(str(error))}.")
            return None
        named = [store for store, name in stores.items() if name.casefold() == term.casefold()]
        return Q(store_id__in=named) if named else None

    def get_urls(self) -> list[URLPattern]:
        """Return the pages, including those of grouped errors, of the tasks and of a task or a queue."""
        own: list[URLPattern] = []
        for view in (self.failures, self.group, self.overview, self.tasks):
            shown = explained(as_reader(self.admin_site.admin_view(view), self.admin_site), self)
            own.append(path(f"{view.__name__}/", shown, name=f"salon_jobs_job_{view.__name__}"))
        return own + super().get_urls()

    def group(self, request: HttpRequest) -> TemplateResponse:
        """Show one group of failed jobs: its period, count and stores, and the stack of the newest."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        given = request.GET.get("fingerprint", "")
        number = int(given) if _FINGERPRINT.fullmatch(given) else 0
        group = search.failure_group(self.get_queryset(request), number) if abs(number) < 2**63 else None
        if group is None:
            return self.gone(request, gettext("No such errors"), gettext("No failed job is left in this group."))
        [job] = self.described([group.newest], request)
        return self.page(
            request,
            "group",
            error_name(job.error_class),
            group=group,
            job=job,
            fingerprint=number,
            jobs=f"{search.COUNTED:,}+" if group.more else f"{len(group.times):,}",
            trend=trend(group.times, now_of(job)),
            stores=group.stores,
            attempts=format_attempts(job.known, list(errors_of(job, using=reader(request))[:_SHOWN])),
            actions=[JOB_ACTIONS[name] for name in ("retry", "discard") if JOB_ACTIONS[name].is_allowed(request)],
        )

    def overview(self, request: HttpRequest) -> TemplateResponse:
        """Show one task, queue or store.

        Raises PermissionDenied for staff of one store, unless it is that store: statistics belong to none.
        """
        if conf.store_model and request.GET.get("store"):
            return self._store(request, request.GET["store"])
        kind = next((each for each in ("task", "queue") if request.GET.get(each)), None)
        if kind is None:
            raise DisallowedModelAdminLookup(gettext("give a task or a queue"))
        self._refuse_limited(request)
        name = storable(request.GET[kind])
        return self.page(request, "overview", capfirst(scope_words(kind, name)), **overview(request, kind, name))

    def _store(self, request: HttpRequest, given: str) -> TemplateResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            store = store_key().parse(storable(given))
        except ValueError as error:
            raise DisallowedModelAdminLookup(f"store_id {error}, not {short_repr(given)}") from None
        if not sees_all_stores(request) and store != current_store_id():
            raise PermissionDenied(gettext("you do not belong to this %(store)s") % store_words())
        return self.page(request, "store", store_name(store), **store_page(request, store))

    def _refuse_limited(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if not sees_all_stores(request):
            raise PermissionDenied(operators_only())

    def tasks(self, request: HttpRequest) -> TemplateResponse:
        """Show the declared tasks. Raises PermissionDenied for staff of one store: code belongs to none."""
        self._refuse_limited(request)
        return self.page(request, "tasks", gettext("Tasks"), tasks=declared_tasks())

    def failures(self, request: HttpRequest) -> TemplateResponse:
        """Show groups of failed jobs with the same cause, each with its newest job and a button to retry them all.

        Or, with ``?state=retrying``, those of jobs that are tried again.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        retrying = request.GET.get("state") == "retrying"
        kinds = search.retrying_kinds if retrying else search.failure_kinds
        return self.page(
            request,
            "failures",
            gettext("Grouped errors"),
            kinds=kinds(using=reader(request)),
            retrying=retrying,
            counted=search.COUNTED,
            most=search.MOST_KINDS,
            may_retry=JOB_ACTIONS["retry"].is_allowed(request) and not retrying,
        )

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the list with the number of jobs in each state."""
        seeks_deleted = request.GET.get("state__exact") == JobState.SUCCEEDED.value and not conf.keep_succeeded
        hint = self.empty_hint if seeks_deleted else ""
        context = {**(extra_context or {}), "states": self._states(request), "hint": hint}
        context["shows_tasks"] = sees_all_stores(request)
        with suppress(ValueError):  # the filter says that it is no store
            if conf.store_model and (chosen := request.GET.get("store", "none")) != "none":
                store = store_key().parse(chosen)
                is_seen = sees_all_stores(request) or store == current_store_id()
                context["store_link"] = self.link_to_store(store) if is_seen else ""
        answer = super().changelist_view(request, context)
        typed = _TYPED.fullmatch(request.GET.get("q", "").strip())
        shown: Any = getattr(answer, "context_data", None) or {}
        is_sought = typed is not None and "cl" in shown and not shown["cl"].result_count
        if typed is None or not is_sought or Job.objects.using(reader(request)).filter(pk=int(typed[1])).exists():
            return answer
        # Its page says why it is gone, or shows the result that is kept.
        return HttpResponseRedirect(self.address_of(Job, typed[1]))

    def _states(self, request: HttpRequest) -> list[tuple[str, str]]:
        """Return each state with its number of jobs, up to 10,000; without it in a filtered list, or one of a store.

        The numbers are those of the whole table, and no index has a store's jobs by state.
        """
        is_filtered = any(value for name, value in request.GET.items() if name not in ("state__exact", "p", "o"))
        if is_filtered or not sees_all_stores(request):
            return [(state.value, "") for state in JobState]
        rows = Job.objects.using(reader(request)).order_by()
        numbers = [(state.value, rows.filter(state=state.value)[: MOST + 1].count()) for state in JobState]
        return [(state, counted(number, MOST + 1)) for state, number in numbers]

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> Any:
        """Show the kept result of a job that is gone, or a page with the possible reasons."""
        may_exist = object_id.isdecimal() and len(object_id) < 20 and may(request, "salon_jobs.view_jobresult")
        if may_exist and JobResult.objects.using(reader(request)).filter(pk=int(object_id)).exists():
            return HttpResponseRedirect(self.address_of(JobResult, object_id))
        name = gettext("Job %(id)s") % {"id": object_id} if object_id.isdecimal() else gettext("That job")
        said = {"job": name, "store": own_store(request)}
        told = gettext("%(job)s does not exist, or has ended and been deleted.") % said
        if said["store"]:
            told = gettext("%(job)s does not exist, or has ended and been deleted, or is not one of %(store)s.") % said
        if not conf.keep_succeeded:
            told = f"{told} {gettext('Succeeded jobs are deleted at once (RETAIN_SUCCEEDED keeps them).')}"
        pruned = (("failed", conf.retain_failed), ("cancelled", conf.retain_cancelled))
        return self.gone(
            request,
            gettext("%(job)s is gone") % {"job": name},
            told,
            pruned=[(gettext(state), duration(age.total_seconds())) for state, age in pruned if age is not None],
            log=self.log_of(object_id) if sees_all_stores(request) else (),
        )

    def state_of(self, row: Any) -> str:
        """Return the state, or "cancelling" for a running job whose cancellation was requested."""
        is_asked = row.state == str(JobState.RUNNING) and row.cancel_requested_at is not None
        return "cancelling" if is_asked else str(row.state)

    def line(self, row: Any) -> str:
        """Name a job by its number, task, queue, state, error and store."""
        store = store_name(row.store_id) if row.store_id and conf.store_model else ""
        queue = scope_words("queue", row.queue)
        parts = (f"#{row.pk} {row.task}", queue, gettext(row.state), error_name(row.error_class), store)
        return " · ".join(part for part in parts if part)

    @admin.display(description=_("job"), ordering="id")
    def job(self, job: Any) -> SafeString:
        """Name the job by its task; below by number, queue, and store if the reader sees several; and its arguments.

        The task leads to the job's page, the store to the store's.
        """
        store = self.link_to_store(job.store_id) if job.store_id and conf.store_model and job.known.sees_all else ""
        rest = format_html_join(" · ", "{}", ((part,) for part in (f"#{job.pk}", store, job.queue) if part))
        said = gettext("more than %(kilobytes)s KB") % {"kilobytes": f"{search.LARGEST_READ // 1024:,}"}
        given = said if job.given is None else Truncator(job.given).chars(_ARGUMENTS)
        name = format_html('<a href="{}">{}</a><small>{}</small>', job.address, job.task, rest)
        return cell_with_lines(name, given)

    @admin.display(description=_("state"))
    def status(self, job: Any) -> SafeString:
        """Show the state as a badge."""
        shown = job.timeliness(now_of(job))
        return badge(shown, _BADGES.get(shown, "quiet"))  # also the state of a newer release

    @admin.display(description=_("state"))
    def progress(self, job: Any) -> SafeString:
        """Show the state, and below the number of attempts."""
        return below(self.status(job), job.known.attempts)

    @admin.display(description=_("why"))
    def detail(self, job: Any) -> SafeString | str:
        """Show why the job waits, with a link to the one before it; its last error; or why it was cancelled."""
        rest = Truncator("; ".join(filter(None, (job.known.progress, job.known.trouble)))).chars(_SUMMARY)
        parts = [part for part in (self._linked(job.known.reasons or (), most=_SUMMARY), rest) if part]
        return format_html_join("; ", "{}", ((part,) for part in parts)) or "-"

    @admin.display(description=_("waiting because"))
    def waiting(self, job: Any) -> SafeString | str:
        """Show why a queued job does not run, if that is known, with a link to the job that it waits for."""
        if job.known.reasons is None:
            return ""
        return self._linked(job.known.reasons) or (job.known.turn if job.known.sees_all else "")

    def _linked(self, reasons: Iterable[WaitReason], *, most: int | None = None) -> SafeString:
        told: list[tuple[str, SafeString | str, str]] = []
        for each in reasons:
            before, number, rest = each.around()
            holder = "" if each.job_id is None else self.link(Job, each.job_id, number)
            before = before if most is None else Truncator(before).chars(most)
            told.append((before, holder, rest))
        return format_html_join("; ", "{}{}{}", told)

    @admin.display(description=_("job key"))
    def of_job_key(self, job: Any) -> SafeString | str:
        """Show the key, with a link to the jobs that have it."""
        return self.link_to_list(Job, job.job_key, key=job.job_key) if job.job_key else "-"

    @admin.display(description=_("concurrency key"))
    def of_concurrency_key(self, job: Any) -> SafeString | str:
        """Show the key, with a link to the task's jobs that have it."""
        key = job.concurrency_key
        return self.link_to_list(Job, key, key=key, task=job.task) if key else "-"

    @admin.display(description=_("outcome"))
    def outcome(self, job: Any) -> str:
        """Show the recorded reason of the end, in words; if it was ended in the admin, by whom."""
        if job.known.outcome and (done := BY_OPERATORS.get(job.reason)):
            asked = JOB_ACTIONS["cancel"].verb.asked if done == "cancelled" else done
            for _, user, what in self.log_of(job.pk):
                if what in (done, asked):
                    ended = {"done": gettext(done), "user": user, "at": instant(job.finished_at)}
                    return gettext("%(done)s by %(user)s, %(at)s") % ended
        return str(job.known.outcome)

    @admin.display(description=_("enqueued"))
    def enqueued(self, job: Any) -> SafeString:
        """Show when the job was enqueued, and below when it ended and how long it ran, or when it was claimed."""
        known = job.known
        if known.claimed_at:
            lines = [gettext("claimed %(at)s") % {"at": relative_time(known.claimed_at, known.now)}]
        else:
            ended = f"{gettext(job.state)} {relative_time(job.finished_at, known.now)}" if job.finished_at else ""
            lines = [ended, _ran_for(known.ran_s)]
        return cell_with_lines(ago(job.created_at, known.now), *lines)

    @admin.display(description=_("ended"), ordering="finished_at")
    def finished(self, job: Any) -> SafeString:
        """Show when the job ended, and below when it was enqueued and how long it ran."""
        known = job.known
        enqueued = gettext("enqueued %(at)s") % {"at": relative_time(job.created_at, known.now)}
        return cell_with_lines(ago(job.finished_at, known.now), enqueued, _ran_for(known.ran_s))

    @admin.display(description=_("due"))
    def due_at(self, job: Job) -> SafeString | str:
        """Show when the job is or was due; a job that waits for others, or did so to its end, never is."""
        return "-" if job.run_at >= LATEST else exact(job.run_at, now_of(job))

    @admin.display(description=_("runs in"))
    def process(self, job: Any) -> SafeString | str:
        """Link to the worker that holds the job."""
        return self.link_to_process(job.leased_by, using=job._state.db)

    @admin.display(description=_("task"))
    def task_link(self, job: Any) -> SafeString:
        return self._of_name(job, task=job.task)

    @admin.display(description=_("queue"))
    def queue_link(self, job: Any) -> SafeString:
        return self._of_name(job, queue=job.queue)

    def _of_name(self, job: Any, **of: str) -> SafeString:
        """Link to the page of a task or queue; for staff of one store, to the jobs that share it."""
        [name] = of.values()
        if not job.known.sees_all:
            return self.link_to_list(Job, name, **of)
        address = reverse("admin:salon_jobs_job_overview", current_app=self.admin_site.name)
        return format_html('<a href="{}?{}">{}</a>', address, urlencode(of), name)

    @admin.display(description=_("store"))
    def store_link(self, job: Job) -> SafeString | str:
        return "-" if job.store_id is None else self.link_to_store(job.store_id)

    @admin.display(description=_("attempts, newest first"))
    def errors(self, job: Any) -> SafeString | str:
        return format_attempts(job.known, job.known.errors)

    @admin.display(description=_("steps"))
    def steps(self, job: Any) -> SafeString | str:
        """Show the last fifty steps that the job has committed, the latest first."""
        lines: list[SafeString | str] = []
        for step in job.known.steps:
            took = gettext("took %(time)s") % {"time": _between(step.started_at, step.committed_at)}
            attempt = gettext("attempt %(number)s") % {"number": step.attempt}
            line: SafeString | str = f"{step} · {attempt} · {instant(step.committed_at)} · {took}"
            if step.value is not None:
                shown = as_json(step.value, whole=is_whole(job))
                line = format_html("<details><summary>{}</summary>{}</details>", line, shown)
            lines.append(line)
        return lines_of(lines) if lines else "-"

    @admin.display(description=_("log"))
    def logged(self, job: Job) -> SafeString | str:
        """Show the last lines logged by a run that did not fail."""
        return text(job.log) if job.log else "-"

    @admin.display(description=_("upcoming retries"))
    def retries_ahead(self, job: Any) -> SafeString | str:
        """Show when each next attempt becomes due, at the earliest and latest, if all before it fail at once.

        For a job that never failed they would be guesses.
        """
        if not job.attempts:
            return "-"
        lines: list[str] = []
        for retry in (retries := job.known.retries):
            times = {"first": instant(retry.earliest), "last": instant(retry.latest)}
            when = times["first"] if len({*times.values()}) == 1 else gettext("%(first)s to %(last)s") % times
            lines.append(f"{_attempt(retry.attempt)}: {when}")
        if retries and (more := job.max_attempts - retries[-1].attempt) > 0:
            lines.append(gettext("and %(count)s more") % {"count": f"{more:,}"})
        return lines_of(lines) if lines else "-"

    @admin.display(description=_("trace"))
    def trace_link(self, job: Job) -> SafeString | str:
        """Link to the trace that the job continues, by ``TRACE_LINK``; without it, show the trace id."""
        kept: object = job.trace
        headers = cast("dict[str, str]", kept) if isinstance(kept, dict) else {}
        match = _TRACE_ID.search(f"{headers.get('traceparent', '')} {headers.get('sentry-trace', '')}")
        if match is None:
            return "-"
        if conf.trace_link is None:
            return match[0]
        return format_html('<a href="{}">{}</a>', conf.trace_link.replace("{trace_id}", match[0]), match[0])

    @admin.display(description=_("enqueued by"))
    def origin(self, job: Any) -> SafeString | str:
        """Link to the job's origin: a fan-out, the end of other jobs, or the tick of a cron entry."""
        found: Origin | None = job.known.origin
        if found is None:
            return "-"
        return found.text if found.row is None else self.link(found.row[0], found.row[1], found.text)

    @admin.display(description=_("flow"))
    def flow(self, job: Any) -> SafeString | str:
        """Draw its flow: each job or group of jobs with its states, linked to its page or its list."""
        found: FlowSummary | None = job.known.flow
        if found is None:
            return "-"
        everything = self.link_to_list(Job, f"{found.name} #{found.flow_id}", flow=found.flow_id)

        def address(stage: Stage) -> str:
            if len(stage.ids) == 1:
                return self.address_of(Job, stage.ids[0])
            return self.address_of_matching(Job, flow=found.flow_id, task=stage.task)

        return format_html("<div>{}{}<p>{}</p></div>", everything, picture(found, address, _BADGES), found.left_out)

    @admin.display(description=_("order"))
    def order(self, job: Any) -> SafeString | str:
        """Show whose turn it is among the jobs with its key, with a link, and how many wait before it and after it."""
        place: PlaceInOrder | None = job.known.order
        if place is None:
            return "-"
        lines: list[SafeString | str] = [*place.lines()]
        if place.turn is not None:
            lines[0] = self.link(Job, place.turn[0], lines[0])
        return lines_of(lines) if lines else "-"

    def hidden_fields(self, request: HttpRequest) -> set[str]:
        """Hide from staff of one store the facts for operators: ticks, fan-outs, follow-ups and processes."""
        return super().hidden_fields(request) | (set() if sees_all_stores(request) else {"origin", "process", "then"})
