"""Apps for INSTALLED_APPS: the header with the switcher, and Django's admin with ``StoreAdminSite`` as its site."""

from __future__ import annotations

from django.apps import AppConfig
from django.contrib.admin import apps as admin  # its AdminConfig by name would count as a default of this app


class StaffConfig(AppConfig):
    """App with the template that puts the switcher into the header of the admin; list it before Django's admin."""

    name = "salon_jobs.staff"
    label = "salon_jobs_staff"
    default = True


class StoreAdminConfig(admin.AdminConfig):
    """Django's admin with a ``StoreAdminSite`` as its default site, in place of "django.contrib.admin"."""

    default = False
    default_site = "salon_jobs.staff.StoreAdminSite"
