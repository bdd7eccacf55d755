"""Tells, through django-health-check, whether a web process reaches the job tables, and whether work is late."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.http import HttpRequest, HttpResponse
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable
from health_check.views import HealthCheckView

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, Late, NotReady, SalonJobsError
from salon_jobs.jobs.queue_front import look_at_queue
from salon_jobs.outbox.find import oldest_messages
from salon_jobs.runtime.preflight import check_tables


@dataclass
class JobTables(HealthCheck):
    """Checks that the database answers and the job tables are there. Role: any."""

    def run(self) -> None:
        """Raise ServiceUnavailable with the error code alone: the details, a host name say, go to the log."""
        try:
            check_tables(conf.database)
        except SalonJobsError as error:
            raise ServiceUnavailable(error.code) from error
        finally:
            connections[conf.database].close()  # it is that of a thread which may not come back


@dataclass
class _Lag(HealthCheck):
    longest: timedelta = timedelta(minutes=5)

    def run(self) -> None:
        """Raise ServiceUnavailable with the error code alone."""
        alias = conf.reader_database
        try:
            if conf.roles is not None and conf.operator_database is None:
                raise ConfigurationError(
                    f"{type(self).__name__} needs SALON_JOBS['OPERATOR_DATABASE']: other roles see one store's rows"
                )
            try:
                ages = self.ages_s(alias)
            except (DatabaseError, InterfaceError) as error:
                raise NotReady(f"the database does not answer: {str(error).strip()}") from error
            for what, age_s in ages.items():
                if age_s > self.longest.total_seconds():
                    raise Late(f"{what} is late by {age_s:.0f} s")
        except SalonJobsError as error:
            raise ServiceUnavailable(error.code) from error
        finally:
            connections[alias].close()

    @abstractmethod
    def ages_s(self, alias: str) -> dict[str, float]:
        """Return for how many seconds what has waited."""


@dataclass
class QueueLag(_Lag):
    """Checks that no due job has waited for longer than ``longest``. Role: operator."""

    def ages_s(self, alias: str) -> dict[str, float]:
        """Return how late the oldest due job of each queue is."""
        return dict(look_at_queue(using=alias).late_s)


@dataclass
class RelayLag(_Lag):
    """Checks that no message has waited to be relayed for longer than ``longest``. Role: operator."""

    def ages_s(self, alias: str) -> dict[str, float]:
        """Return the age of the oldest message of each destination."""
        return oldest_messages(using=alias)


class HealthView(HealthCheckView):
    """Answers 200, or 503 when a check fails: ``HealthView.as_view(checks=[JobTables])``. Theirs would say 500."""

    async def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Run the checks and answer in the format that is asked for (``?format=json``, ``text``, …)."""
        response: HttpResponse = await super().get(request, *args, **kwargs)
        if response.status_code == 500:
            response.status_code = 503
        return response
