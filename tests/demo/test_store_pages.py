"""Uses the demo's pages of a store, as its people do, over the web role's connection."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client, override_settings
from django.utils import timezone

from project.salon.business_day import business_day_bounds, jst_date
from tests.settings import SALON_JOBS
from tests.support import change, row, seen
from tests.tenancy.web import member_of, two, web_role

__all__ = ["two", "web_role"]  # fixtures


@pytest.fixture
def booked(two: list[UUID], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[UUID]]:
    """Give each store two reservations of today and one of tomorrow; return today's, the first store's first."""
    today = jst_date(timezone.now())
    monkeypatch.setattr("project.salon.views.jst_date", lambda _: today)  # midnight in Japan may be near
    start, end = business_day_bounds(today)
    given: dict[str, Any] = {"status": "tentative", "expires_at": timezone.now()}
    times = (start, end - timedelta(minutes=1), end)
    booked = [row("reservation", store_id=store, starts_at=at, **given) for store, at in product(two, times)]
    with override_settings(ROOT_URLCONF="project.urls", SALON_JOBS=SALON_JOBS):
        yield booked[0:2] + booked[3:5]


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def listed(client: Client) -> list[UUID]:
    return [UUID(each["id"]) for each in client.get("/reservations/").json()["reservations"]]


def test_confirm_own_reservation(two: list[UUID], booked: list[UUID]) -> None:
    client = signed_in(member_of(two[0]))
    assert listed(client) == booked[:2]
    assert client.post(f"/reservations/{booked[0]}/confirm/").json() == {"status": "confirmed"}
    assert client.post(f"/reservations/{booked[0]}/confirm/").status_code == 409
    assert client.post(f"/reservations/{booked[2]}/confirm/").status_code == 404, "another store's"
    assert seen("SELECT id FROM reservation WHERE status <> 'tentative'") == [(booked[0],)]
    # One message for the one that was confirmed, from the same transaction.
    [(event, store, aggregate_id, payload)] = seen(
        "SELECT event, store_id, aggregate_id, payload ->> 'reservation_id' FROM salon_jobs_message"
    )
    assert (event, store, aggregate_id, UUID(payload)) == ("reservation.confirmed", two[0], str(two[0]), booked[0])


def test_upload_and_follow_parsing(two: list[UUID], booked: list[UUID]) -> None:
    client, other = signed_in(member_of(two[0])), signed_in(member_of(two[1]))
    response = client.post("/files/", {"file": SimpleUploadedFile("sales.txt", b"100\n20\n")})
    assert response.status_code == 202
    task = response.json()
    assert task["status"] == "PENDING"
    # File, task and message are there together, from the same transaction.
    [(file, name, content)] = seen("SELECT id, name, content FROM source_file WHERE store_id = %s", two[0])
    assert (str(file), name, content) == (task["source_file_id"], "sales.txt", "100\n20\n")
    payload = {"task_id": task["task_id"], "source_file_id": task["source_file_id"]}
    messages = seen("SELECT event, store_id, aggregate_id, payload FROM salon_jobs_message")
    assert messages == [("file.uploaded", two[0], task["task_id"], payload)]
    change("UPDATE parse_task SET status = 'SUCCEEDED', lines = 2, total = 120")
    page = f"/files/tasks/{task['task_id']}/"
    assert client.get(page).json() == {**task, "status": "SUCCEEDED", "lines": 2, "total": 120}
    assert other.get(page).status_code == 404, "another store's"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "The submitted file is empty."),
        (b"1" * 1_000_001, "must be at most 1,000,000 bytes"),
        (b"\xff", "must be a text in UTF-8"),
        (b"1\0", "must be a text without NUL characters"),
        (None, "This field is required."),
    ],
)
def test_wrong_upload_leaves_nothing(two: list[UUID], booked: list[UUID], content: bytes | None, why: str) -> None:
    sent = {} if content is None else {"file": SimpleUploadedFile("sales.txt", content)}
    response = signed_in(member_of(two[0])).post("/files/", sent)
    assert (response.status_code, response.json()) == (400, {"errors": {"file": [why]}})
    for table in ("source_file", "parse_task", "salon_jobs_message"):
        assert seen(f"SELECT count(*) FROM {table}") == [(0,)]


def test_choose_between_stores(two: list[UUID], booked: list[UUID]) -> None:
    client = signed_in(member_of(*two))
    assert client.get("/reservations/").status_code == 403
    assert client.get("/stores/").json() == {"stores": [str(store) for store in two], "current": None}
    assert client.post("/stores/", {"store_id": str(uuid4())}).status_code == 400
    assert client.post("/stores/", {"store_id": str(two[1])}).json()["current"] == str(two[1])
    assert listed(client) == booked[2:]
