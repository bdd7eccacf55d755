"""Follows the page on calling an API: its module runs against a small server, which answers in each way in turn."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.db import connections
from django.test import RequestFactory
from django.utils.http import http_date

from salon_jobs.core.outcomes import Cancelled, Errored, Snoozed, Succeeded
from salon_jobs.jobs import JobHandle, result_waits
from salon_jobs.testing import drain_jobs
from salon_jobs.worker.async_handlers import run_coroutine
from tests.inside import has_answer_listener
from tests.support import seen
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.parametrize("calls", ["docs/how-to/call-an-api.md"], indirect=True)


class Api(BaseHTTPRequestHandler):
    """The API: it answers with what ``answers`` says, then as it should, and keeps what it was asked."""

    protocol_version = "HTTP/1.1"
    answers: list[tuple[int, dict[str, str]]]
    asked: list[tuple[str, str | None]]
    connections: set[Any]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.path, self.headers.get("Idempotency-Key")))
        self.connections.add(self.client_address)
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        body = json.dumps({"rate": 1.25}).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write nothing to the output of the tests."""


@pytest.fixture
def api(settings: Any) -> Iterator[type[Api]]:
    handler = type("Api", (Api,), {"answers": [], "asked": [], "connections": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        settings.RATES_URL = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield handler
        server.shutdown()
        thread.join()


@pytest.fixture
def shop(api: type[Api], database: None, calls: list[str]) -> Iterator[Any]:
    """Make the page's calls, and return the module of its tasks."""
    module = importlib.import_module("shop.rates")
    for call in calls:
        exec(call, {})
    yield module
    if module.client.cache_info().currsize:
        run_coroutine(module.client().aclose())
    module.blocking_client().close()


def test_jobs_share_connection_and_are_limited(shop: Any, api: type[Api]) -> None:
    handles = [shop.fetch_rate.enqueue(account="acme", currency=currency) for currency in ("EUR", "CHF", "JPY")]
    drain_jobs()
    assert [handle.result() for handle in handles] == [1.25] * 3
    assert (len(api.asked), len(api.connections)) == (3, 1)
    assert seen("SELECT name, max_concurrency, rate FROM salon_jobs_limit ORDER BY name") == [
        ("fetch-rate", None, 100 / 60),
        ("fetch-rate:acme", 5, 20 / 60),
    ]


def test_answers_end_runs_as_documented(shop: Any, api: type[Api]) -> None:
    at = datetime.now(UTC) + timedelta(minutes=10)
    api.answers[:] = [
        (429, {"Retry-After": "120"}),
        (503, {}),
        (404, {}),
        (429, {"Retry-After": http_date(at.timestamp())}),
        (429, {"Retry-After": "soon"}),
    ]
    for _ in range(len(api.answers)):
        shop.fetch_rate.enqueue(account="acme", currency="EUR")
    # At one instant: the shortest of these waits is a second, and what is due again would run again.
    outcomes = [run.outcome for run in drain_jobs(now=datetime.now(UTC), raise_errors=False)]
    left_s = (at - datetime.now(UTC)).total_seconds() - 1  # the header leaves out parts of a second
    seconds, unavailable, unknown, date, garbage = outcomes
    assert isinstance(unavailable, Errored)
    assert isinstance(unknown, Cancelled)
    for snoozed, least_s, asked_s in ((seconds, 120, 120), (date, left_s, 600), (garbage, 1, 1)):
        assert isinstance(snoozed, Snoozed)
        assert timedelta(seconds=least_s) <= snoozed.delay <= timedelta(seconds=1.5 * asked_s)
    assert seen("SELECT attempts, count(*) FROM salon_jobs_job WHERE state = 'queued' GROUP BY 1 ORDER BY 1") == [
        (0, 3),
        (1, 1),
    ]


def test_payment_keeps_its_name(shop: Any, api: type[Api]) -> None:
    api.answers[:] = [(500, {}), (429, {})]
    shop.charge_order.enqueue(order_id=7, amount=500)
    hour = timedelta(hours=1)
    runs = [run for n in range(3) for run in drain_jobs(now=datetime.now(UTC) + n * hour, raise_errors=False)]
    assert [type(run.outcome) for run in runs] == [Errored, Snoozed, Succeeded]
    assert api.asked == [("/charges", "charge-order-7")] * 3
    shop.fetch_catalogue.enqueue(account="acme")
    drain_jobs()
    assert api.asked[-1] == ("/catalogue?account=acme", None)


def test_view_waits_for_answer(shop: Any, api: type[Api], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_waits, "_LISTENS_ON_FOR_S", 0.0)
    wait = JobHandle.await_result
    # A busy machine may take longer than the seconds that the page gives people.
    monkeypatch.setattr(JobHandle, "await_result", lambda handle, _timeout: wait(handle, LIMIT_S))
    view = importlib.import_module("shop.views").rate
    api.answers[:] = [(200, {}), (404, {})]

    def respond() -> Any:
        try:
            return asyncio.run(view(RequestFactory().get("/"), account="acme", currency="EUR"))
        finally:
            connections.close_all()

    found = []
    with ThreadPoolExecutor(1) as threads:
        for _ in range(2):
            response = threads.submit(respond)
            while not response.done():
                drain_jobs(raise_errors=False)
            found.append((response.result().status_code, json.loads(response.result().content)))
    eventually(lambda: not has_answer_listener())
    assert found == [(200, {"rate": 1.25}), (404, {"error": "discarded: there is no currency EUR"})]
