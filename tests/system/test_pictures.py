"""Takes the pictures of the admin that the documentation shows; ``make pictures`` keeps them in docs/images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from uuid import UUID

import pytest
from playwright.sync_api import Page

from salon_jobs.core.metrics import BUCKETS
from tests.support import change, seen

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("beside_a_loop")]

_MOST_BYTES = 200_000
_TRACEBACK = """Traceback (most recent call last):
  File "salon/tasks.py", line 41, in send_invitation
    mail.send(invitation.email, body)
  File "salon/mail.py", line 17, in send
    raise MailServerBusy(f"451 try again later: {address}")
salon.mail.MailServerBusy: 451 try again later: kim@example.com"""


@pytest.fixture
def failed(shop: list[UUID]) -> int:
    """Let one job have failed for good after three attempts, and others have ended in each way."""
    change(
        "UPDATE salon_jobs_job SET error_class = 'django.db.utils.OperationalError', attempts = 25,"
        " created_at = now() - (600 - id) * interval '1 min', started_at = now() - interval '8 s',"
        " finished_at = now() - interval '7 s' WHERE state = 'failed'"
    )
    change("UPDATE salon_jobs_limit SET paused_by = 'dana', paused_at = now() - interval '25 min'")
    [(job,)] = seen(
        "INSERT INTO salon_jobs_job (task, queue, store_id, state, attempts, max_attempts, reason, error_class,"
        " payload, created_at, run_at, started_at, finished_at)"
        " VALUES ('send-operator-invitation-email', 'mail', %s, 'failed', 3, 3, 'attempts_exhausted',"
        " 'salon.mail.MailServerBusy', '{\"invitation_id\": 4711}', now() - interval '20 min',"
        " now() - interval '3 min', now() - interval '3 min', now() - interval '175 s') RETURNING id",
        shop[0],
    )
    change(
        "INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class, message, traceback, occurred_at)"
        " SELECT %s, %s, n, 'salon.mail.MailServerBusy', '451 try again later: kim@example.com', %s,"
        " now() - (4 - n) * interval '6 min' FROM generate_series(1, 3) AS n",
        job,
        shop[0],
        _TRACEBACK,
    )
    waits = [0] * BUCKETS
    change(
        "INSERT INTO salon_jobs_task_minute"
        " VALUES (date_trunc('minute', now()) - interval '3 min', 'send-operator-invitation-email', 'mail', 0, 2, 1,"
        " 0, 0, 0, 0, 0, %s, 0, %s)",
        waits,
        waits,
    )
    change(
        "INSERT INTO salon_jobs_job (task, store_id, state, finished_at, reason, created_at)"
        " VALUES ('charge-card', %s, 'cancelled', now(), 'discarded: by an operator', now() - interval '9 min')",
        shop[1],
    )
    return int(job)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_small(
    page: Page, site: str, failed: int, scheme: Literal["light", "dark"], tmp_path: Path
) -> None:
    folder = Path(os.environ.get("PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page.emulate_media(color_scheme=scheme)
    for name, address in _PAGES.items():
        # The dashboard is shown down to its queues.
        height = 980 if name == "dashboard" else 768
        page.set_viewport_size({"width": int(os.environ.get("PICTURES_WIDTH", "1366")), "height": height})
        page.goto(f"{site}{address.format(job=failed)}")
        if page.locator("#toggle-nav-sidebar").is_visible() and page.locator("#main.shifted").count():
            page.click("#toggle-nav-sidebar")
        page.evaluate("window.scrollTo(0, 0)")
        path = folder / f"admin-{name}-{scheme}.png"
        page.screenshot(path=path)
        assert path.stat().st_size <= _MOST_BYTES, path


_PAGES = {"dashboard": "salon_jobs/dashboard/", "jobs": "salon_jobs/job/", "failed-job": "salon_jobs/job/{job}/change/"}
