"""Switches to another store in a browser that has kept a page of the former one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.views.decorators.cache import cache_page
from django.views.decorators.http import last_modified
from playwright.sync_api import Browser, expect

from tests.tenancy.test_caches import BY_STORE
from tests.tenancy.web import canaries, configured, member_of, signed_in, two, web_role
from tests.waiting import LIMIT_S

__all__ = ["two", "web_role"]
pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]


def names(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"<p>{', '.join(canaries())}</p>")


def changed_at(request: HttpRequest) -> datetime:
    """Return a time that is earlier in the second store."""
    return datetime(2026, 1, 20 if "canary 0" in canaries() else 10, tzinfo=UTC)


urlpatterns = [
    path("cached/", cache_page(600)(names)),
    path("dated/", last_modified(changed_at)(names)),
    path("plain/", names),
]


@pytest.fixture
def pages(web_role: None) -> Iterator[str]:
    """Serve the views above as the web role; yield their address."""
    with configured(), override_settings(ROOT_URLCONF=__name__, CACHES=BY_STORE):
        server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
        server.set_app(WSGIHandler())
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join(LIMIT_S)
        server.server_close()


@pytest.mark.parametrize("name", ["cached", "dated"])
def test_kept_page_of_former_store(browser: Browser, pages: str, two: list[UUID], name: str) -> None:
    session = signed_in(member_of(*two)).cookies["sessionid"].value
    with browser.new_context() as context:
        context.add_cookies([{"name": "sessionid", "value": session, "url": pages}])
        page = context.new_page()
        for number, store in enumerate(two):
            page.goto(f"{pages}plain/?choose_store=1")
            page.click(f"[value='{store}']")
            page.wait_for_url(f"{pages}plain/")
            page.goto(f"{pages}{name}/")
            expect(page.locator("p")).to_have_text(f"canary {number}")
