"""Opens the page of schedules as an operator and as staff of one store, and uses its buttons."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from salon_jobs import schedule, tenant_context
from tests import tasks
from tests.admin.test_admin_readers import ADMIN, Rows, listed, staff, two, web
from tests.admin.test_other_pages import text_of
from tests.support import change, seen

__all__ = ["two", "web"]  # fixtures

MAY = ("view_schedule", "pause_schedule", "run_schedule", "delete_schedule", "view_all_stores")


@pytest.fixture
def ids(two: tuple[Rows, Rows]) -> list[int]:
    """Add a schedule of each store, and one of none; the first has ticks."""
    found: list[int] = []
    for rows in two:
        with tenant_context(rows.store):
            call = tasks.in_store.call(store_id=rows.store, number=7)
            found.append(schedule(call, "0 9 * * 1", key="weekly", timezone="Asia/Tokyo", overlap=False).id)
    found.append(schedule(tasks.system.call(note="x"), every=timedelta(seconds=10), key="often").id)
    change(
        "INSERT INTO salon_jobs_schedule_tick"
        " (schedule_id, store_id, number, tick_at, job_id, outcome, by_hand, run_by)"
        " VALUES (%s, %s, 1, now() - interval '1 week', 404, 'failed: attempts_exhausted', false, ''),"
        " (%s, %s, 2, now(), 405, 'succeeded', true, 'ann')",
        *2 * (found[0], two[0].store),
    )
    change("UPDATE salon_jobs_schedule SET ticks = 2 WHERE id = %s", found[0])
    return found


def act(client: Client, action: str, pk: int) -> str:
    form = {"action": action, "index": "0", "_selected_action": str(pk), "confirmed": "1", "store": ""}
    return client.post(f"{ADMIN}schedule/", form, follow=True).content.decode()


def test_the_list_and_the_page_show_ticks_and_outcomes(ids: list[int]) -> None:
    client = staff(everything=True)
    text = text_of(client, "schedule/")
    for shown in ("weekly test-store", "0 9 * * 1 Asia/Tokyo", "often test-system", "every 10 s", "succeeded"):
        assert shown in text
    page = text_of(client, f"schedule/{ids[0]}/change/")
    assert "failed: attempts_exhausted" in page
    assert ", run now by ann: succeeded" in page
    assert "a tick is skipped while the last one's job is not done" in page.replace("&#x27;", "'")
    assert '"number": 7' in page.replace("&quot;", '"')


def test_buttons_pause_resume_run_and_delete_with_the_permission_and_are_logged(ids: list[int]) -> None:
    only_looks = staff(may=("view_schedule", "view_all_stores"))
    assert "Pause" not in text_of(only_looks, "schedule/")
    client = staff(may=MAY)
    assert "Pause" in text_of(client, "schedule/")
    act(client, "pause", ids[0])
    [(by,)] = seen("SELECT paused_by FROM salon_jobs_schedule WHERE paused_at IS NOT NULL")
    assert by.startswith("user ")
    assert "paused" in text_of(client, "schedule/")
    act(client, "resume", ids[0])
    assert seen("SELECT count(*) FROM salon_jobs_schedule WHERE paused_at IS NOT NULL") == [(0,)]
    for pk in (ids[0], ids[2]):
        act(client, "run_now", pk)
    assert seen("SELECT run_by FROM salon_jobs_schedule_tick ORDER BY id DESC LIMIT 2") == [(by,), (by,)]
    assert seen("SELECT task FROM salon_jobs_job WHERE tick IS NOT NULL ORDER BY 1") == [
        ("test-store",),
        ("test-system",),
    ]
    act(client, "delete", ids[2])
    assert seen("SELECT id FROM salon_jobs_schedule ORDER BY 1") == [(id_,) for id_ in ids[:2]]
    logged = seen("SELECT split_part(change_message, ':', 1) FROM django_admin_log ORDER BY id")
    assert [text for (text,) in logged] == ["paused", "resumed", "run now", "run now", "deleted"]


def test_staff_of_a_store_see_and_change_its_schedules_alone(ids: list[int], two: tuple[Rows, Rows]) -> None:
    client = staff(two[0].store, may=MAY[:4])
    assert listed(client, "schedule") == {ids[0]}
    for pk in ids:
        for action in ("pause", "run_now"):
            form = {"action": action, "index": "0", "_selected_action": str(pk)}
            client.post(f"{ADMIN}schedule/", form, follow=True)
    assert seen("SELECT id FROM salon_jobs_schedule WHERE paused_at IS NOT NULL") == [(ids[0],)]
    assert seen("SELECT store_id FROM salon_jobs_job WHERE tick IS NOT NULL") == [(two[0].store,)]
