"""URLs of the browser tests: those of the project, and an admin for staff who work in one store at a time."""

from __future__ import annotations

from django.urls import path

from project.salon.models import Customer, Store
from project.urls import urlpatterns as project_urls
from salon_jobs.access import StoreIsolation
from salon_jobs.staff import StoreAdminSite
from salon_jobs.staff.site import ModelAdmin


class CustomerAdmin(ModelAdmin):
    """The customers of a store."""

    list_display = ("name", "email")
    search_fields = ("name",)
    fields = ("store", "name", "email")
    ordering = ("name",)


for constraint in Store._meta.constraints:
    if isinstance(constraint, StoreIsolation):
        constraint.names = ("name",)  # as a migration would have it
site = StoreAdminSite(name="staff")
site.register(Customer, CustomerAdmin)
site.register(Store)
urlpatterns = [path("admin/staff/", site.urls), *project_urls]
