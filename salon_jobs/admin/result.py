"""Admin page of kept results of succeeded jobs."""

from __future__ import annotations

from typing import ClassVar

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from salon_jobs.admin.base import ReadOnlyAdmin, id_or_other
from salon_jobs.admin.cells import age_of, below, json_of, payload_of, time_of
from salon_jobs.models import JobResult
from salon_jobs.words import duration


class JobResultAdmin(ReadOnlyAdmin):
    """Admin of jobs' results, for as long as ``keep_result`` keeps them."""

    has_rows_of_stores = True
    empty_hint = _("Tasks with keep_result keep their results for that long.")
    list_display = ("job", "store", "finished", "took", "attempts", "kept")
    list_display_links = ("job",)
    search_fields = ("job_id__exact",)
    search_help_text = _("The full number of a job, or its public ID")
    fieldsets = (
        (None, {"fields": ("task", "shown_value", "shown_payload", "store", "queue", "attempts")}),
        (_("Times"), {"fields": ("enqueued", "due", "started", "ended", "took", "deleted")}),
        (_("Details"), {"fields": ("priority", "public_id", "worker_id"), "classes": ("collapse",)}),
    )
    help_texts: ClassVar = {
        "attempts": _("Runs, the successful one included"),
        "worker_id": _("The process that ran it last"),
    }
    deferred = ("payload", "value")
    shown_value = json_of("value", _("returned"))
    shown_payload = payload_of(_("payload"))
    finished = age_of("finished_at", _("finished"))
    kept = age_of("expires_at", _("kept until"))
    enqueued = time_of("created_at", _("enqueued"))
    due = time_of("run_at", _("due"))
    started = time_of("started_at", _("started"))
    ended = time_of("finished_at", _("ended"))
    deleted = time_of("expires_at", _("kept until"))
    ordering = ("-job_id",)
    sortable_by = ()

    def matches(self, request: HttpRequest, term: str) -> Q:
        """Match the number or the public ID of a job."""
        return id_or_other(term, "public_id")

    @admin.display(description=_("job"))
    def job(self, row: JobResult) -> SafeString:
        """Name the job by its task, and below by its number."""
        return below(row.task, f"#{row.pk}")

    @admin.display(description=_("ran for"))
    def took(self, row: JobResult) -> str:
        return duration(max(0.0, (row.finished_at - row.started_at).total_seconds()))
