"""URLs of a store's pages, Django's admin, where operators see the jobs, and the web process's health."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from project.salon import views
from salon_jobs.integrations.health_check import HealthView, JobTables
from salon_jobs.tenancy import without_store

urlpatterns = [
    path("admin/", admin.site.urls),
    path("health/", HealthView.as_view(checks=[JobTables])),
    path("stores/", views.stores),
    path("files/", views.upload_file),
    path("files/tasks/<uuid:task_id>/", views.parse_task),
    path("reservations/", views.reservations_today),
    path("reservations/<uuid:reservation_id>/confirm/", views.confirm_reservation),
    path("", without_store(RedirectView.as_view(pattern_name="admin:index"))),
]
