from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views import View
from health_check.base import HealthCheck

class HealthCheckView(View):
    checks: Iterable[type[HealthCheck] | str | tuple[type[HealthCheck] | str, dict[str, Any]]]
    async def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse: ...
