"""Actions on jobs that need a form: pausing their queue, task or store, and running one again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final, cast

from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_noop
from django.utils.translation import gettext_lazy as _

from salon_jobs.admin.actions import BATCH, Action, ActionForm, actions_of, log_changed, not_done, user_name
from salon_jobs.admin.cells import scope_name
from salon_jobs.admin.reader import reader
from salon_jobs.conf import settings as conf
from salon_jobs.core.error_report import storable
from salon_jobs.core.errors import HeldUp, OptionInvalid, SalonJobsError, UnknownTask
from salon_jobs.core.records import JobState
from salon_jobs.core.redaction import HIDDEN, redacted, unredacted
from salon_jobs.jobs import registry
from salon_jobs.jobs.control import job_with
from salon_jobs.models import Job, Limit, Schedule
from salon_jobs.tenancy.context import context_of
from salon_jobs.verbs import Verb, verbs_of


class PauseForm(ActionForm):
    """Form for the scopes to pause or resume. A scope is written ``kind:name``."""

    verb = forms.ChoiceField(
        label=_("Action"),
        choices=[("paused", _("Pause")), ("resumed", _("Resume"))],
        widget=forms.RadioSelect,
        initial="paused",
    )
    scopes = forms.MultipleChoiceField(label=_("Apply to"), widget=forms.CheckboxSelectMultiple)


class PauseAction(Action):
    """Action that pauses or resumes queues, tasks and stores of the selected jobs."""

    def make_form(self, data: Mapping[str, Any] | None, request: HttpRequest, queryset: QuerySet[Job]) -> PauseForm:
        """Return the form with the queues, tasks and stores of the newest thousand selected jobs."""
        kinds = (Limit.Kind.QUEUE, Limit.Kind.TASK, Limit.Kind.STORE)
        rows = queryset.order_by("-pk").values_list("queue", "task", "store_id")[:BATCH]
        columns = zip(*rows, strict=True)
        scopes = [
            (kind, name)
            for kind, column in zip(kinds, columns, strict=False)  # no columns without rows
            for name in sorted({str(value) for value in column if value is not None})[:50]
        ]
        paused = set(Limit.objects.using(reader(request)).filter(paused=True).values_list("kind", "name"))
        form, now = PauseForm(self.verb, data), gettext("%s (paused now)")
        if scopes and paused.issuperset(scopes):
            form.fields["verb"].initial = "resumed"
        field: Any = form.fields["scopes"]
        field.choices = [
            (f"{kind}:{name}", capfirst((now if (kind, name) in paused else "%s") % scope_name(kind, name)))
            for kind, name in scopes
        ]
        return form

    def run(self, model_admin: Any, request: HttpRequest, queryset: QuerySet[Job], form: ActionForm) -> None:
        """Pause or resume all jobs of the chosen queues, tasks and stores, not only the selected ones."""
        using, done, scopes = reader(request), form.cleaned_data["verb"], form.cleaned_data["scopes"]
        said = gettext("%(scope)s %(done)s.")
        [verb] = [verb for verb in verbs_of(Limit).values() if verb.done == done]
        for result in verb.apply(scopes, by=user_name(request), using=using):
            kind, _, name = result.id.partition(":")
            scope = capfirst(scope_name(kind, name))
            if result.changed:
                log_changed(request, list(Limit.objects.using(using).filter(kind=kind, name=name)), done)
                messages.success(request, said % {"scope": scope, "done": gettext(done)})
            else:
                messages.warning(request, f"{scope}: {result.detail}.")


class ArgumentsForm(ActionForm):
    """Form of the arguments of a job or a schedule, as JSON in which hidden values (``REDACT``) stay hidden."""

    def __init__(self, verb: Verb, data: Mapping[str, Any] | None, row: Job | Schedule) -> None:
        super().__init__(verb, data)
        self.row: Any = row
        field = self.fields["arguments"]
        kept: object = row.payload
        self.stored = cast("dict[str, Any]", kept if isinstance(kept, dict) else {})
        try:
            declared = registry.get_declaration(row.task)
            self.stored = declared.payload.named(self.stored)
            field.help_text = signature_of(declared)
        except UnknownTask:
            pass  # the page says so instead of showing the form
        shown = redacted(self.stored, conf.redact)
        self.hides = shown != self.stored
        field.initial = storable(json.dumps(shown, indent=2, ensure_ascii=False))
        field.widget.attrs["rows"] = min(max(field.initial.count("\n") + 3, 6), 30)

    def clean_arguments(self) -> dict[str, Any]:
        """Read the arguments, and check them by the task's types."""
        try:
            given: Any = json.loads(self.cleaned_data["arguments"])
            if not isinstance(given, dict):
                raise forms.ValidationError(gettext("Write the arguments by name, as a JSON object: {…}"))
            arguments: dict[str, Any] = unredacted(given, self.stored, conf.redact)
            job_with(self.row, arguments)
        except (SalonJobsError, ValueError, RecursionError) as error:
            raise forms.ValidationError(str(error)) from None
        return arguments


def signature_of(declared: registry.TaskDeclaration) -> str:
    """Return the name of a task with its arguments, for people."""
    parameters = ", ".join(map(str, declared.payload.signature.parameters.values()))
    return f"{declared.name}({parameters})".replace("'", "")


class ActionOnOne(Action):
    """Action on the row of a page, with the arguments of its task in the form."""

    of_one: ClassVar[bool] = True
    form: ClassVar[type[ArgumentsForm]] = ArgumentsForm
    says: ClassVar[str]

    def make_form(self, data: Mapping[str, Any] | None, request: HttpRequest, queryset: QuerySet[Any]) -> ArgumentsForm:
        """Return the form with the row's arguments. Raises OptionInvalid for several rows."""
        if len(rows := list(queryset[:2])) != 1:
            raise OptionInvalid(gettext("Choose a single %s") % queryset.model._meta.verbose_name)
        return self.form(self.verb, data, rows[0])

    def preview(self, request: HttpRequest, queryset: QuerySet[Any], form: Any) -> tuple[list[str], bool]:
        """Return the effect on the row, and on hidden values."""
        try:
            registry.get_declaration(form.row.task)
        except UnknownTask as error:
            return [f"{error}."], False
        lines = [gettext(self.says) % form.row]
        if form.hides:
            lines.append(gettext("%s stands for a value that is hidden: left as it is, that value is used.") % HIDDEN)
        return lines, True


class RunAgain(ActionOnOne):
    """Action that enqueues a job like the one on the page, with other arguments."""

    says = gettext_noop("This enqueues a new job with these arguments. %s stays as it is.")

    def preview(self, request: HttpRequest, queryset: QuerySet[Any], form: Any) -> tuple[list[str], bool]:
        """Add how the new job differs, and why it waits."""
        lines, can_confirm = super().preview(request, queryset, form)
        job: Job = form.row
        if job.flow_id is not None:
            lines.append(gettext("The new job is no member of the flow: nothing in it waits for its end."))
        if job.ordered == "strict" and job.state == str(JobState.FAILED):
            lines.append(gettext("Under the same key it waits at the end of the line, until %s is discarded.") % job)
        return lines, can_confirm

    def run(self, model_admin: Any, request: HttpRequest, queryset: QuerySet[Job], form: Any) -> None:
        """Enqueue the job as its store, log it for both, and link to it."""
        job: Job = form.row
        try:
            with context_of(job.store_id):
                handle = self.verb.call([job.pk], job, form.cleaned_data["arguments"], look=reader(request))
        except HeldUp:
            raise
        except SalonJobsError as error:
            messages.warning(request, not_done(Job, job.pk, gettext(self.verb.done), error))
            return
        log_changed(request, [job], f"run again with other arguments, as job {handle.id}")
        new = Job(pk=handle.id, task=job.task)
        log_changed(request, [new], f"enqueued with other arguments than job {job.pk}")
        messages.success(request, format_html(gettext("{} enqueued."), model_admin.link(Job, new.pk, new)))


JOB_ACTIONS: Final = {action.name: action for action in actions_of(Job, pause=PauseAction, run_again=RunAgain)}
