"""Times a request and a job in the context of a store, each compared with the same in a plain transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from uuid import UUID

from django.core.handlers.base import BaseHandler
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path

from benchmarks.processes import print_figures
from benchmarks.tasks import QUERIES
from project.salon.models import Operator
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.run import JobRun
from salon_jobs.models import Process
from salon_jobs.worker.ends import settle
from salon_jobs.worker.executor import execute
from tests.tenancy.probe import round_trips

_STORE = UUID("00000000-0000-4000-8000-000000000001")


def main(work: str, count: str) -> None:
    """Do a ``request`` or a ``job`` so many times each way: in the tenant context, and in a transaction alone."""
    {"request": _requests, "job": _jobs}[work](int(count))


def _requests(count: int) -> None:
    request = RequestFactory().get("/")
    with override_settings(ROOT_URLCONF=__name__):
        in_store, plain = _handler("salon_jobs.tenancy.request.TenantMiddleware"), _handler()
        print_figures(**_compared("request", lambda: in_store(request), lambda: _atomic(plain, request), count))


def _handler(*middleware: str) -> Callable[[HttpRequest], object]:
    with override_settings(MIDDLEWARE=list(middleware)):
        handler = BaseHandler()
        handler.load_middleware()
    return handler.get_response


def _atomic(handle: Callable[[HttpRequest], object], request: HttpRequest) -> None:
    """Answer with ATOMIC_REQUESTS on."""
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    handle(request)
    connection.settings_dict["ATOMIC_REQUESTS"] = False


class OneStore:
    """Is a resolver that asks nothing: whether the user belongs to the store is not the context's cost."""

    def resolve(self, _request: HttpRequest) -> UUID:
        """Return the one store."""
        return _STORE

    def allowed(self, _request: HttpRequest, _store: UUID) -> bool:
        """Allow it to everybody."""
        return True


def _view(_request: HttpRequest) -> HttpResponse:
    """Look once at a table that is the same to every store."""
    Operator.objects.filter(pk=_STORE).exists()
    return HttpResponse()


urlpatterns = [path("", _view)]


def _jobs(count: int) -> None:
    """Run jobs that are queued already, of a store and of none; each makes one query in a transaction."""
    process = Process.objects.create(kind="worker", hostname="benchmark", pid=1, concurrency=1)
    leases = Leases(process.pk, using="default")
    of_store, plain = (iter(leases.claim_due([task], count + 2)) for task in QUERIES)

    def run(jobs: Iterator[ClaimedJob]) -> None:
        job = next(jobs)
        running = JobRun(job, registry.get_declaration(job.task), leases, leases.connection)
        settle(running, execute(running))

    print_figures(**_compared("job", lambda: run(of_store), lambda: run(plain), count))
    process.delete()


def _compared(name: str, ours: Callable[[], object], plain: Callable[[], object], count: int) -> dict[str, float]:
    """Run both once to warm up, once to count, then in turn so many times on the clock."""
    ways = (ours, plain)
    trips: list[int] = []
    for run in ways:
        run()
        with round_trips(connection) as counted:
            run()
        trips += counted
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(count):
        for way in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            ways[way]()
            times[way].append(time.perf_counter() - began)
    in_store_s, plain_s = map(median, times)
    more_trips = max(0, trips[0] - trips[1])
    return {
        f"{name}_us": in_store_s * 1e6,
        f"{name}_ratio": in_store_s / plain_s,
        f"{name}_trips": trips[0],
        f"{name}_more_trips": more_trips,
    }
