"""Checks for django-health-check: whether a web process can reach the job tables, and whether work is late."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeVar

from django.db import Error
from django.http import HttpRequest, HttpResponse

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, Late, NotReady, SalonJobsError
from salon_jobs.jobs.waiting import look_at_queue
from salon_jobs.outbox.queries import oldest_messages
from salon_jobs.process.preflight import check_tables
from salon_jobs.process.probe import KEPT_S, Probe

try:
    from health_check.base import HealthCheck
    from health_check.exceptions import ServiceUnavailable
    from health_check.views import HealthCheckView
except ModuleNotFoundError as missing:
    raise ConfigurationError("the health view needs django-health-check: pip install 'salon-jobs[health]'") from missing

T = TypeVar("T")


@dataclass
class JobTables(HealthCheck):
    """Health check that the database answers and the job tables exist. Role: any."""

    def run(self) -> None:
        """Raise ServiceUnavailable with the error code only: details such as a host name go to the log."""
        try:
            _probe(check_tables, conf.database).answer()
        except SalonJobsError as error:
            raise ServiceUnavailable(error.code) from error


@dataclass
class _Lag(HealthCheck):
    longest: timedelta = timedelta(minutes=5)

    def run(self) -> None:
        """Raise ServiceUnavailable with the error code only."""
        try:
            if not conf.roles.one_user and conf.operator_database is None:
                raise ConfigurationError(
                    f"{type(self).__name__} needs SALON_JOBS['OPERATOR_DATABASE']: other roles see one store's rows"
                )
            try:
                ages = _probe(self.ages_s, conf.reader_database).answer()
            except Error as error:
                raise NotReady(f"the database does not answer: {str(error).strip()}") from error
            for what, age_s in ages.items():
                if age_s > self.longest.total_seconds():
                    raise Late(f"{what} is late by {age_s:.0f} s")
        except SalonJobsError as error:
            raise ServiceUnavailable(error.code) from error

    @staticmethod
    @abstractmethod
    def ages_s(alias: str) -> dict[str, float]:
        """Return the age in seconds of waiting jobs or messages, by name."""


@dataclass
class QueueLag(_Lag):
    """Health check that no due job has waited for longer than ``longest``. Role: operator."""

    @staticmethod
    def ages_s(alias: str) -> dict[str, float]:
        """Return how late the oldest due job of each queue is."""
        return dict(look_at_queue(using=alias).late_s)


@dataclass
class RelayLag(_Lag):
    """Health check that no message has waited to be published for longer than ``longest``. Role: operator."""

    @staticmethod
    def ages_s(alias: str) -> dict[str, float]:
        """Return the age of the oldest message of each destination."""
        return oldest_messages(using=alias)


@cache
def _probe(ask: Callable[[str], T], alias: str) -> Probe[T]:
    return Probe(partial(ask, alias), kept_s=KEPT_S)


class HealthView(HealthCheckView):
    """View that answers 200, or 503 when a check fails: ``HealthView.as_view(checks=[JobTables])``.

    The package's own view answers 500.
    """

    async def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Run the checks and answer in the requested format (``?format=json``, ``text``, …)."""
        response: HttpResponse = await super().get(request, *args, **kwargs)
        if response.status_code == 500:
            response.status_code = 503
        return response
