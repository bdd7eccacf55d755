"""Tells a load balancer, through django-health-check, whether a web process reaches the job tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.http import HttpRequest, HttpResponse
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable
from health_check.views import HealthCheckView

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import SalonJobsError
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


class HealthView(HealthCheckView):
    """Answers 200, or 503 when a check fails: ``HealthView.as_view(checks=[JobTables])``. Theirs would say 500."""

    async def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Run the checks and answer in the format that is asked for (``?format=json``, ``text``, …)."""
        response: HttpResponse = await super().get(request, *args, **kwargs)
        if response.status_code == 500:
            response.status_code = 503
        return response
