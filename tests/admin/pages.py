"""Staff of every kind, and what the admin's pages show them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from typing import Any
from uuid import UUID, uuid4

from django.contrib.auth.models import Permission, User
from django.test import Client

from salon_jobs.core.metrics import BUCKETS, bucket_of
from tests.support import change, seen

ADMIN = "/admin/salon_jobs/"


class WebRouter:
    """Sends Django's own tables to the web role, as a web process has them."""

    def db_for_read(self, model: Any, **_: object) -> str | None:
        return "web" if model._meta.app_label in ("admin", "auth", "contenttypes", "sessions") else None

    db_for_write = db_for_read


@dataclass(frozen=True, slots=True)
class Rows:
    """IDs of one store, its failed job, and its message that blocks an aggregate."""

    store: UUID
    job: int
    message: int
    aggregate: int


def staff(*stores: UUID, may: tuple[str, ...] = (), everything: bool = False) -> Client:
    """Sign in as staff who belong to stores and have these permissions."""
    user = User.objects.create(username=f"user {uuid4()}", is_staff=True, is_superuser=everything)
    names = {"view_job", "retry_job", "cancel_job", "view_message", "view_blockedaggregate", *may}
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    for store in stores:
        change("INSERT INTO membership (id, store_id, user_id) VALUES (%s, %s, %s)", uuid4(), store, user.pk)
    client = Client()
    client.force_login(user)
    return client


def listed(client: Client, page: str, query: str = "") -> set[int]:
    """Return the IDs of the rows that a list links; "#7" in a row is another one, for which it waits."""
    answer = client.get(f"{ADMIN}{page}/{query}")
    assert answer.status_code == 200, answer.content
    link = rf'href="/admin/salon_jobs/{page}/(\d+)/change/[^"]*"[^>]*>(?!#)'
    return set(map(int, re.findall(link, answer.content.decode())))


def html_of(client: Client, page: str, status: int = 200) -> str:
    """Return a whole page of ours; follow its redirect."""
    answer = client.get(ADMIN + page, follow=True)
    assert answer.status_code == status
    return answer.content.decode()


def page_of(client: Client, page: str) -> str:
    """Return what a page of ours has below the header and beside the navigation."""
    return html_of(client, page).split('id="content"')[-1]


def text_of(client: Client, page: str) -> str:
    """Return the text of a page of ours as people read it, blanks as one."""
    return as_text(page_of(client, page))


def as_text(html: str) -> str:
    return re.sub(r" ([;.])", r"\1", " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split()))


def form(action: str, *rows: object, **fields: Any) -> dict[str, Any]:
    """Return what a list sends for an action on rows."""
    given = {"action": action, "index": "0", "select_across": "0", "_selected_action": [str(row) for row in rows]}
    return {**given, **fields}


def buttons(html: str) -> list[str]:
    return re.findall(r'name="action" value="(\w+)"', html)


def hidden_fields(html: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html))


def logged() -> list[tuple[Any, ...]]:
    return seen("SELECT object_id, change_message FROM django_admin_log ORDER BY id")


def count_runs(task: str, queue: str, succeeded: int, failed: int, seconds: float) -> None:
    """Write the counts of the last minute: all waits and durations as long as that."""
    times = [0] * BUCKETS
    times[bucket_of(seconds)] = succeeded + failed
    change(
        "INSERT INTO salon_jobs_task_minute VALUES (date_trunc('minute', now()), %s, %s, %s, 0, %s, 0, 0, 0, 0,"
        " 1.0, %s, 1.0, %s, %s, %s)",
        *(task, queue, succeeded, failed, times, times, seconds, seconds),
    )
