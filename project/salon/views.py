"""Views of the reservations and files of the request's store; no query here names a store."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponseBadRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from project.salon.business_day import business_day_bounds, jst_date
from project.salon.models import ParseTask, Reservation, Store
from project.salon.models.reservation import ReservationStatus
from project.salon.reservations import confirm
from project.salon.uploads import upload
from salon_jobs.tenancy import stores_of, without_store


class UploadForm(forms.Form):
    """One text file of at most a megabyte."""

    file = forms.FileField(max_length=120)

    def clean_file(self) -> dict[str, str]:
        """Return name and content."""
        file = self.cleaned_data["file"]
        if file.size > 1_000_000:
            raise forms.ValidationError("must be at most 1,000,000 bytes")
        try:
            content = file.read().decode()
        except UnicodeDecodeError:
            raise forms.ValidationError("must be a text in UTF-8") from None
        if "\0" in content:
            raise forms.ValidationError("must be a text without NUL characters")
        return {"name": file.name, "content": content}


@require_POST
def upload_file(request: HttpRequest) -> HttpResponseBase:
    """Take a file to be parsed; 202 with its pending task, 400 if it is no such file."""
    form = UploadForm(request.POST, request.FILES)
    if not form.is_valid():
        return JsonResponse({"errors": form.errors}, status=400)
    # The request's store is the only one that is visible.
    task = upload(Store.objects.get().pk, **form.cleaned_data["file"])
    return JsonResponse(_shown(task), status=202)


@require_GET
def parse_task(request: HttpRequest, task_id: UUID) -> HttpResponseBase:
    """Tell how far the parsing of a file is; 404 if the store has no such task."""
    return JsonResponse(_shown(get_object_or_404(ParseTask, pk=task_id)))


def _shown(task: ParseTask) -> dict[str, Any]:
    return {
        "task_id": task.pk,
        "source_file_id": task.source_file_id,  # pyright: ignore[reportAttributeAccessIssue]
        "status": task.status,
        "lines": task.lines,
        "total": task.total,
        "error": task.error,
    }


@require_GET
def reservations_today(request: HttpRequest) -> HttpResponseBase:
    """List the reservations of today's business day, by time."""
    start, end = business_day_bounds(jst_date(timezone.now()))
    found = Reservation.objects.filter(starts_at__gte=start, starts_at__lt=end).order_by("starts_at", "pk")
    return JsonResponse({"reservations": list(found.values("id", "status", "starts_at"))})


@require_POST
def confirm_reservation(request: HttpRequest, reservation_id: UUID) -> HttpResponseBase:
    """Confirm a tentative reservation and emit it; 404 if the store has no such one, 409 if it is not tentative."""
    reservation = get_object_or_404(Reservation.objects.select_for_update(), pk=reservation_id)
    if reservation.status != ReservationStatus.TENTATIVE:
        return JsonResponse({"status": reservation.status}, status=409)
    confirm(reservation)
    return JsonResponse({"status": reservation.status})


@without_store
@login_required(login_url="admin:login")
def stores(request: HttpRequest) -> HttpResponseBase:
    """List the signed-in user's stores; POST ``store_id`` to select one for this session."""
    own = [str(store) for store in stores_of(request.user)]
    if request.method == "POST":
        if request.POST.get("store_id") not in own:
            return HttpResponseBadRequest("store_id must be one of your stores\n", content_type="text/plain")
        request.session["store_id"] = request.POST["store_id"]
    return JsonResponse({"stores": own, "current": request.session.get("store_id")})
