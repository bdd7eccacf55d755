"""Jobs and messages in Django's admin, read through the operator's database role if there is one.

The admin imports this in every process. A page's module loads when one of its attributes is needed, such as its URLs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.db.models import Model

from salon_jobs import models
from salon_jobs.core import lazy_names
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.text import short_repr

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    from salon_jobs.admin.dashboard import DashboardAdmin as DashboardAdmin
    from salon_jobs.admin.job import JobAdmin as JobAdmin
    from salon_jobs.admin.limit import LimitAdmin as LimitAdmin
    from salon_jobs.admin.message import BlockedAggregateAdmin as BlockedAggregateAdmin
    from salon_jobs.admin.message import DestinationAdmin as DestinationAdmin
    from salon_jobs.admin.message import InboxAdmin as InboxAdmin
    from salon_jobs.admin.message import MessageAdmin as MessageAdmin
    from salon_jobs.admin.message import PartitionAdmin as PartitionAdmin
    from salon_jobs.admin.message import ReplayAdmin as ReplayAdmin
    from salon_jobs.admin.process import CronEntryAdmin as CronEntryAdmin
    from salon_jobs.admin.process import CronTickAdmin as CronTickAdmin
    from salon_jobs.admin.process import FanOutAdmin as FanOutAdmin
    from salon_jobs.admin.process import ProcessAdmin as ProcessAdmin
    from salon_jobs.admin.result import JobResultAdmin as JobResultAdmin
    from salon_jobs.admin.schedule import ScheduleAdmin as ScheduleAdmin

# Each page's class and its module, in the order of use, which is also their order in the index.
_PAGES: Final = (
    (models.Dashboard, "DashboardAdmin", "dashboard"),
    (models.Job, "JobAdmin", "job"),
    (models.JobResult, "JobResultAdmin", "result"),
    (models.CronEntryState, "CronEntryAdmin", "process"),
    (models.Schedule, "ScheduleAdmin", "schedule"),
    (models.Limit, "LimitAdmin", "limit"),
    (models.Process, "ProcessAdmin", "process"),
    (models.Message, "MessageAdmin", "message"),
    (models.BlockedAggregate, "BlockedAggregateAdmin", "message"),
    (models.DestinationState, "DestinationAdmin", "message"),
    (models.InboxMessage, "InboxAdmin", "message"),
    (models.Replay, "ReplayAdmin", "message"),
    (models.RelayPartition, "PartitionAdmin", "message"),
    (models.CronTick, "CronTickAdmin", "process"),
    (models.FanOutRecord, "FanOutAdmin", "process"),
)
_load = lazy_names(__name__, {name: module for _, name, module in _PAGES})
if not TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin  # generic only for type checkers
    __getattr__ = _load


class _LateAdmin(ModelAdmin):
    """Admin that becomes an instance of the class with its name as soon as an attribute is read."""

    def __init__(self, model: type[Model], admin_site: admin.AdminSite) -> None:
        self.model, self.admin_site = model, admin_site

    def __getattribute__(self, name: str) -> Any:
        arguments = [object.__getattribute__(self, argument) for argument in ("model", "admin_site")]
        real = _load(type(self).__name__)
        self.__class__ = real
        real.__init__(self, *arguments)
        return getattr(self, name)


def _in_order_of_use(get_app_list: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return a site's ``get_app_list`` with our pages in the order of use; Django sorts them by name."""
    places: dict[Any, int] = {model: place for place, (model, *_) in enumerate(_PAGES)}

    @wraps(get_app_list)
    def ordered(*args: Any, **kwargs: Any) -> list[Any]:
        apps = get_app_list(*args, **kwargs)
        for app in apps:
            # A project's own method may add groups without these keys.
            if app.get("app_label") == models.Job._meta.app_label:
                pages: list[dict[str, Any]] = app["models"]
                pages.sort(key=lambda page: places.get(page.get("model"), len(places)))
        return apps

    return ordered


def register(site: admin.AdminSite) -> None:
    """Register all our pages, including the dashboard, on an admin site of the project; they link within that site.

    The default site has them already. Pages that the site has registered for one of our models stay. Call it before the
    URLs of the site are read, as in the module that makes the site. Raises ConfigurationError for anything but a site.
    """
    if not isinstance(site, admin.AdminSite):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"register takes an AdminSite, such as AdminSite(name='ops'), not {short_repr(site)}")
    missing = [(model, name) for model, name, _ in _PAGES if not site.is_registered(model)]
    for model, name in missing:
        site.register(model, type(name, (_LateAdmin,), {}))
    if missing:
        setattr(site, "get_app_list", _in_order_of_use(site.get_app_list))  # noqa: B010 - a method of its class


register(admin.site)
