"""The admin, served once for all tests, and one Chromium for the tests of a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.hashers import MD5PasswordHasher
from django.contrib.auth.models import Permission, User
from playwright.sync_api import Browser, Page, StorageState, expect, sync_playwright

from project.local.ports import free_port
from tests.interpreter import ROOT, succeed
from tests.support import change
from tests.waiting import LIMIT_S, eventually

# As long as Playwright waits for a click: on a busy machine a page may take longer than the five seconds of expect().
expect.set_options(timeout=30_000)

NAME, PASSWORD = "operator", "a password for tests"
_SERVED = {"DJANGO_SETTINGS_MODULE": "tests.system.served"}


@pytest.fixture
def beside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this thread use the ORM. Playwright's loop runs in it, but none of our code runs on that loop."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture(scope="session")
def site(migrated: None) -> Iterator[str]:
    """Serve the project as the web role, with the operator's database; yield the address of the admin."""
    made = f"from django.contrib.auth.models import User; User.objects.create_superuser({NAME!r}, '', {PASSWORD!r})"
    succeed("shell", "-c", made, **_SERVED)
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"],
        cwd=ROOT,
        env={**os.environ, **_SERVED, "DEBUG": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}/admin/"
    try:
        eventually(partial(_answers, address))
        yield address
    finally:
        server.terminate()
        server.wait(10)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=LIMIT_S).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "install Debian's chromium; .ci/run does"
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        opened = playwright.chromium.launch(executable_path=chromium, args=options)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, site: str) -> StorageState:
    """Sign in as the operator; return the cookies."""
    with browser.new_context() as context:
        sign_in(context.new_page(), site, NAME)
        return context.storage_state()


@pytest.fixture
def page(browser: Browser, site: str, signed_in: StorageState) -> Iterator[Page]:
    """Open a page in which the operator is already signed in."""
    with browser.new_context(storage_state=signed_in, viewport={"width": 1280, "height": 900}) as context:
        yield context.new_page()


def sign_in(page: Page, site: str, name: str) -> None:
    """Sign in through the form, as the user with this name."""
    page.context.clear_cookies()
    page.goto(site)
    page.fill("#id_username", name)
    page.fill("#id_password", PASSWORD)
    page.click("input[type=submit]")


@contextmanager
def staff(*permissions: str, stores: tuple[UUID, ...] = ()) -> Iterator[str]:
    """Create a staff user with these permissions who belongs to these stores; yield the name."""
    password = MD5PasswordHasher().encode(PASSWORD, "salt")
    user = User.objects.using("owner").create(username=f"user {uuid4()}", password=password, is_staff=True)
    found = Permission.objects.using("owner").filter(content_type__app_label="salon_jobs", codename__in=permissions)
    assert len(found) == len(permissions)
    user.user_permissions.set(found)
    for store in stores:
        change("INSERT INTO membership (id, store_id, user_id) VALUES (%s, %s, %s)", uuid4(), store, user.pk)
    try:
        yield user.username
    finally:
        change("DELETE FROM django_admin_log WHERE user_id = %s", user.pk)
        change("DELETE FROM membership WHERE user_id = %s", user.pk)
        user.delete(using="owner")
