"""Tells what an action did to each row, and asks before it where it can not be undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin, helpers
from django.contrib.admin.models import CHANGE, LogEntry
from django.forms import Form
from django.http import HttpRequest
from django.template.response import TemplateResponse

CONFIRMED = "confirmed"
SHOWN = 5


def log_changed(request: HttpRequest, rows: Sequence[Any], done: str) -> None:
    """Write one line of the admin's log for each row."""
    user: Any = request.user
    LogEntry.objects.log_actions(user_id=user.pk, queryset=list(rows), action_flag=CHANGE, change_message=done)


def tell(request: HttpRequest, *, changed: int, refused: Sequence[str], done: str, noun: str, more: int = 0) -> None:
    """Say how many were changed, and of the first few that were not, why; ``more`` were not, besides ``refused``."""
    if changed:
        messages.success(request, f"{counted(changed, noun)} {done}.")
    for text in refused[:SHOWN]:
        messages.warning(request, text)
    if more := more + max(len(refused) - SHOWN, 0):
        messages.warning(request, f"{counted(more, noun)} more not {done}.")


def ask_first(
    request: HttpRequest, model_admin: ModelAdmin[Any], *, action: str, title: str, lines: Sequence[str],
    can_go_on: bool = True, wants_reason: bool = False, reason: str = "", form: Form | None = None,
) -> TemplateResponse:  # fmt: skip
    """Return a page that says what would be done, and sends the same selection again when it is confirmed.

    ``form`` asks what else the action needs to know; its fields come along.
    """
    context = {
        **model_admin.admin_site.each_context(request),
        "title": title, "opts": model_admin.opts, "media": model_admin.media, "lines": lines, "action": action,
        "can_go_on": can_go_on, "wants_reason": wants_reason, "reason": reason, "form": form, "confirmed": CONFIRMED,
        "selected": request.POST.getlist(helpers.ACTION_CHECKBOX_NAME),
        "select_across": request.POST.get("select_across", "0"),
        "checkbox_name": helpers.ACTION_CHECKBOX_NAME,
    }  # fmt: skip
    return TemplateResponse(request, "admin/salon_jobs/ask_first.html", context)


def counted(count: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"
