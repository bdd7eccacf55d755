"""Actions on selected rows, their reports, and the confirmation page for those that cannot be undone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin, helpers
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest
from django.template.response import TemplateResponse

from salon_jobs.admin.base import sees_all_stores
from salon_jobs.core.records import ActionResult
from salon_jobs.tenancy.active import current_store_id

_CONFIRMED = "confirmed"
_STORE = "store"
_NEWEST = "newest"
SHOWN = 5
BATCH = 1000
COUNTED = 100_000
LONGEST_S = 20.0


def operate(
    request: HttpRequest,
    queryset: QuerySet[Any],
    change: Callable[[list[int]], Sequence[ActionResult[int]]],
    *,
    done: str,
    noun: str,
    oldest_first: bool = False,
    id_of: Callable[[Any], int] = attrgetter("pk"),
) -> int:
    """Change the selected rows, a thousand at a time; log those changed, report how many, and for some others why not.

    ``change`` takes ids, as ``id_of`` returns them for a row, and returns the results in their order. Returns how many
    changed rows have more to report. Stops after ``LONGEST_S``, before a web server cuts the request off and the report
    is lost.
    """
    end = time.monotonic() + LONGEST_S
    changed = more_to_say = left = 0
    refused: list[str] = []
    for rows in _batches(asked_about(request, queryset), oldest_first=oldest_first):
        results = list(zip(rows, change([id_of(row) for row in rows]), strict=True))
        log_changed(request, [row for row, result in results if result.changed], done)
        others = [(row, result) for row, result in results if not result.changed]
        changed, left = changed + len(results) - len(others), left + len(others)
        more_to_say += sum(result.changed and bool(result.detail) for _, result in results)
        refused += [
            f"{noun.capitalize()} {row.pk} was not {done}: {result.detail}."
            for row, result in others[: SHOWN - len(refused)]
        ]
        if len(rows) == BATCH and time.monotonic() > end:
            text = f"That took long, and more {noun}s may match: do it again, or use manage.py salon_jobs."
            messages.warning(request, text)
            break
    tell(request, changed=changed, refused=refused, done=done, noun=noun, more=left - len(refused))
    return more_to_say


def _batches(queryset: QuerySet[Any], *, oldest_first: bool) -> Iterator[list[Any]]:
    """Yield all rows in batches by id; newest first, without those written meanwhile."""
    rows = queryset.order_by("pk" if oldest_first else "-pk")
    batch = list(rows[:BATCH])
    while batch:
        yield batch
        last = batch[-1].pk
        batch = list((rows.filter(pk__gt=last) if oldest_first else rows.filter(pk__lt=last))[:BATCH])


def log_changed(request: HttpRequest, rows: Sequence[Any], done: str) -> None:
    """Write one entry for each row to the admin's log."""
    user: Any = request.user
    LogEntry.objects.log_actions(user_id=user.pk, queryset=list(rows), action_flag=CHANGE, change_message=done)


def tell(request: HttpRequest, *, changed: int, refused: Sequence[str], done: str, noun: str, more: int = 0) -> None:
    """Report how many were changed, and why the first few others were not; ``more`` were not, besides ``refused``."""
    if changed:
        messages.success(request, f"{counted(changed, noun)} {done}.")
    for text in refused[:SHOWN]:
        messages.warning(request, text)
    if more := more + max(len(refused) - SHOWN, 0):
        messages.warning(request, f"{counted(more, f'more {noun}')} {'was' if more == 1 else 'were'} not {done}.")


def ask_first(
    request: HttpRequest,
    model_admin: ModelAdmin[Any],
    queryset: QuerySet[Any],
    *,
    action: str,
    title: str,
    lines: Sequence[str],
    can_go_on: bool = True,
    wants_reason: bool = False,
    reason: str = "",
    form: Form | None = None,
) -> TemplateResponse:
    """Return a page that says what would be done, and submits the same selection again when confirmed.

    ``form`` asks for further input; its fields are submitted along with it.
    """
    hidden = {
        "action": action,
        "index": 0,
        "select_across": request.POST.get("select_across", "0"),
        _STORE: _store(request),
        _NEWEST: queryset.order_by("-pk").values_list("pk", flat=True).first() or 0,
    }
    context = {
        **model_admin.admin_site.each_context(request),
        "title": title,
        "opts": model_admin.opts,
        "media": model_admin.media,
        "lines": lines,
        "store": _store(request),
        "can_go_on": can_go_on,
        "wants_reason": wants_reason,
        "reason": reason,
        "form": form,
        "confirmed": _CONFIRMED,
        "selected": request.POST.getlist(helpers.ACTION_CHECKBOX_NAME),
        "checkbox_name": helpers.ACTION_CHECKBOX_NAME,
        "hidden": hidden,
    }
    return TemplateResponse(request, "admin/salon_jobs/ask_first.html", context)


def how_many(queryset: QuerySet[Any], noun: str) -> str:
    """Format the number of selected rows; beyond 100,000 they are not counted."""
    count = queryset.order_by()[: COUNTED + 1].count()
    return counted(count, noun) if count <= COUNTED else f"More than {COUNTED:,} {noun}s"


def confirmed(request: HttpRequest) -> bool:
    """Return whether the action was confirmed, in the store it was asked for: another tab can choose another store."""
    return _CONFIRMED in request.POST and request.POST.get(_STORE, "") == _store(request)


def asked_about(request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
    """Leave out rows enqueued or written after the confirmation page, which did not count them."""
    newest = request.POST.get(_NEWEST, "")
    return queryset.filter(pk__lte=newest) if newest.isdecimal() and len(newest) < 20 else queryset


def _store(request: HttpRequest) -> str:
    return "" if sees_all_stores(request) else str(current_store_id() or "")


def counted(count: int, noun: str) -> str:
    """Format a count with its noun."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"
