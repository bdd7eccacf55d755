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
from salon_jobs.core.metrics import BUCKETS, bucket_of
from tests.interpreter import ROOT, succeed
from tests.outbox.rows import ORDERS, block, write
from tests.support import change, in_state, seen, selected
from tests.waiting import LIMIT_S, eventually

# As long as Playwright waits for a click: on a busy machine a page may take longer than the five seconds of expect().
expect.set_options(timeout=30_000)

WEEK_MINUTES = 7 * 24 * 60
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
        server.wait(LIMIT_S)


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


@pytest.fixture
def shop(stores: list[UUID]) -> list[UUID]:
    """Have a week of statistics, processes at work, failures, an outage, a parked aggregate and a paused queue."""
    [(supervisor,)] = seen(
        "INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (1, 'supervisor', 'shop-1', 10) RETURNING id"
    )
    [(worker,)] = seen(
        "INSERT INTO salon_jobs_process (id, kind, hostname, pid, supervisor_id, concurrency)"
        " VALUES (2, 'worker', 'shop-1', 11, %s, 8) RETURNING id",
        supervisor,
    )
    [(relay,)] = seen(
        "INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (3, 'relay', 'shop-2', 9) RETURNING id"
    )
    change("INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (4, 'scheduler', 'shop-2', 12)")
    change("INSERT INTO salon_jobs_partition (partition, owner) SELECT n, %s FROM generate_series(0, 15) AS n", relay)
    change(
        "INSERT INTO salon_jobs_job (task, queue, store_id, run_at)"
        " SELECT 'aggregate-daily-sales-for-store', (ARRAY['default', 'mail', 'reports'])[1 + n %% 3],"
        " (ARRAY[%s, %s, %s]::uuid[])[1 + (n %% 5 = 0)::int + (n %% 7 = 0)::int], now() - n * interval '1 s'"
        " FROM generate_series(1, 240) AS n",
        *stores,
    )
    change(
        "INSERT INTO salon_jobs_job (task, store_id, state, leased_by, lease, started_at)"
        " SELECT 'send-operator-invitation-email', %s, 'running', %s, 1, now() - n * interval '13 s'"
        " FROM generate_series(1, 7) AS n",
        stores[0],
        worker,
    )
    row = in_state("'failed'", task="'expire-tentative-for-store'", store_id="%s", reason="'attempts_exhausted'")
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, 12)", stores[1])
    change(
        "INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class)"
        " SELECT n, %s, 1, 'django.db.utils.OperationalError' FROM generate_series(1, 12) AS n",
        stores[1],
    )
    change(
        "INSERT INTO salon_jobs_task_minute"
        " SELECT date_trunc('minute', now()) - n * interval '1 minute', 'aggregate-daily-sales-for-store', 'default',"
        " 38 + (13 * sin(n / 11.0) + 6 * sin(n / 2.3))::int + (hashint4(n) & 15), greatest(0, (hashint4(n) & 7) - 4),"
        " CASE WHEN n %% 11 = 0 THEN 2 ELSE 0 END, 0, 0, 0, 0, 9.0, waits, 9.0, waits FROM generate_series(0, %s) AS n,"
        " LATERAL (SELECT CASE hashint4(n / 3) & 3 WHEN 0 THEN %s::int[] WHEN 1 THEN %s::int[] WHEN 2 THEN %s::int[]"
        " ELSE %s::int[] END) AS drawn (waits)",
        WEEK_MINUTES,
        *(_waits(slow, s) for slow, s in ((8, 0.3), (5, 0.2), (12, 0.45), (9, 0.6))),
    )
    # The newest numbers are those of the jobs above: 240 of which a third is paused.
    change(
        "INSERT INTO salon_jobs_queue_minute SELECT date_trunc('minute', now()) - n * interval '1 minute', 'default',"
        " queued::int, (queued * (2.0 / 3 + wander * (0.08 * sin(n / 5.0) - 0.06)))::int, 1.0, true"
        " FROM generate_series(0, %s) AS n, LATERAL (SELECT least(1.0, greatest(0, n - 2) / 8.0)) AS w (wander),"
        " LATERAL (SELECT 240 + wander * (60 * sin(n / 9.0) + 25 * sin(n / 3.1) + (hashint4(n) & 31) - 40)) AS q"
        " (queued)"
        " WHERE n NOT BETWEEN 20 AND 26",
        WEEK_MINUTES,
    )
    change(
        "INSERT INTO salon_jobs_destination (aggregate_type, outage_since, outage_code, outage)"
        " VALUES (%s, now() - interval '5 minutes', 'BROKER.UNREACHABLE', 'connection refused')",
        ORDERS,
    )
    change("INSERT INTO salon_jobs_limit (kind, name, paused) VALUES ('queue', 'reports', true)")
    block(write("failed", aggregate="1001", store=stores[1]), "parked")
    return stores


def _waits(slow: int, slow_s: float) -> list[int]:
    """Return a histogram of short waits, of which so many were as slow as that."""
    waits = [0] * BUCKETS
    for seconds, count in ((0.004, 60), (0.02, 30), (slow_s, slow)):
        waits[bucket_of(seconds)] = count
    return waits
