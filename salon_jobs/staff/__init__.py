"""Django's admin for staff who work in one store at a time: an app, an admin site, and mixins for other sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from salon_jobs.core import lazy_names

if TYPE_CHECKING:
    from salon_jobs.staff.site import StoreAdminMixin as StoreAdminMixin
    from salon_jobs.staff.site import StoreAdminSite as StoreAdminSite
    from salon_jobs.staff.site import StoreAdminSiteMixin as StoreAdminSiteMixin
else:
    __getattr__ = lazy_names(
        __name__, dict.fromkeys(("StoreAdminMixin", "StoreAdminSite", "StoreAdminSiteMixin"), "site")
    )
