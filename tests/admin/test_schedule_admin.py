"""Opens the page of schedules as an operator and as staff of one store, and uses its buttons."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.utils.functional import Promise

from salon_jobs import schedule, tenant_context
from salon_jobs.admin.actions import FIELDS
from salon_jobs.admin.schedule import NewScheduleForm
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.db.connections import alias_of
from salon_jobs.models import Schedule
from salon_jobs.schedules.stored import save_schedule
from tests import tasks
from tests.admin.pages import ADMIN, Rows, form, listed, page_of, staff, text_of
from tests.backend import calls
from tests.support import change, elsewhere, moved_to, seen, wait_until_waiting
from tests.waiting import LIMIT_S

MAY = ("view_schedule", "pause_schedule", "run_schedule", "delete_schedule", "view_all_stores")
EDIT = ("view_schedule", "change_schedule", "add_schedule", "view_all_stores")
WEEKLY = {"line": "0 9 * * 1", "timezone": "Asia/Tokyo", "arguments": '{"number": 7}', "confirmed": "1"}


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
    return client.post(f"{ADMIN}schedule/", form(action, pk, confirmed="1", store=""), follow=True).content.decode()


def test_list_and_page_show_ticks(operator: Client, ids: list[int]) -> None:
    text = text_of(operator, "schedule/")
    for shown in ("weekly test-store", "0 9 * * 1 Asia/Tokyo", "often test-system", "every 10 s", "succeeded"):
        assert shown in text
    page = text_of(operator, f"schedule/{ids[0]}/change/")
    assert "failed: its last attempt failed" in page
    assert ", run now by ann: succeeded" in page
    assert "a tick is skipped while the last one's job is not done" in page.replace("&#x27;", "'")
    assert '"number": 7' in page


def test_buttons_need_permission_and_are_logged(ids: list[int]) -> None:
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


def test_run_beside_running_job_is_added(ids: list[int]) -> None:
    """With the same key; one that waits is found instead."""
    pk = schedule(tasks.keyed_system.call(note="n"), every=timedelta(hours=1), key="keyed").id
    client = staff(may=MAY)
    for said in ("added", "found a waiting"):
        assert f"Schedule keyed: {said} " in act(client, "run_now", pk)
    change(f"UPDATE salon_jobs_job SET {moved_to('running')} WHERE task = 'test-keyed-system'")
    assert "Schedule keyed: added " in act(client, "run_now", pk)


def test_store_staff_reach_own_schedules_alone(ids: list[int], two: tuple[Rows, Rows]) -> None:
    client = staff(two[0].store, may=MAY[:4])
    assert listed(client, "schedule") == {ids[0]}
    for pk in ids:
        for action in ("pause", "run_now"):
            client.post(f"{ADMIN}schedule/", form(action, pk), follow=True)
    assert seen("SELECT id FROM salon_jobs_schedule WHERE paused_at IS NOT NULL") == [(ids[0],)]
    assert seen("SELECT store_id FROM salon_jobs_job WHERE tick IS NOT NULL") == [(two[0].store,)]


def ask(client: Client, pk: int, **fields: Any) -> str:
    """Submit the form that changes a schedule, as it is now, or open it without fields."""
    [(changed_at,)] = seen("SELECT changed_at FROM salon_jobs_schedule WHERE id = %s", pk)
    sent = form("change", pk, **{"store": "", "shown": changed_at, **fields})
    return unescape(client.post(f"{ADMIN}schedule/", sent, follow=True).content.decode())


def add(client: Client, **fields: Any) -> str:
    return unescape(client.post(f"{ADMIN}schedule/add/", {"store": "", **fields}, follow=True).content.decode())


def errors_of(page: str) -> dict[str, str]:
    return dict(re.findall(r'<ul class="errorlist" id="id_(\w+)_error"><li>(.*?)</li>', page, re.DOTALL))


def logged() -> list[tuple[Any, ...]]:
    return seen("SELECT object_id, action_flag, change_message FROM django_admin_log ORDER BY id")


def test_change_period_and_arguments(ids: list[int]) -> None:
    client = staff(may=EDIT)
    assert 'value="change"' in page_of(client, f"schedule/{ids[0]}/change/")
    shown_form = ask(client, ids[0])
    for shown in ('value="0 9 * * 1"', 'value="Asia/Tokyo"', '"number": 7', "test-store(store_id: "):
        assert shown in shown_form
    assert " checked" not in shown_form
    text = ask(
        client, ids[0], **{**WEEKLY, "every": "1:30:00", "line": "", "jitter": "30", "arguments": '{"number": 8}'}
    )
    assert "weekly</a> changed." in text
    columns = "line, timezone, every, catch_up, jitter, overlap, payload::text"
    row = f"SELECT {columns} FROM salon_jobs_schedule WHERE id = %s"
    half = timedelta(minutes=90)
    assert seen(row, ids[0]) == [("", "UTC", half, half, timedelta(seconds=30), False, '{"number": 8}')]
    shown_form = ask(client, ids[0])
    assert 'value="01:30:00"' in shown_form
    assert 'value="00:00:30"' in shown_form
    # The default of one period does not stay for another.
    often = {"every": "10", "arguments": '{"number":\r\n8}', "overlap": "on", "confirmed": "1", "timezone": "UTC"}
    ask(client, ids[0], **often)
    ten = timedelta(seconds=10)
    assert seen(row, ids[0]) == [("", "UTC", ten, ten, timedelta(0), True, '{"number": 8}')]
    assert "left as it is" in ask(client, ids[0], **often)
    assert logged() == [
        (str(ids[0]), 2, "changed: line, every, jitter, arguments"),
        (str(ids[0]), 2, "changed: every, jitter, overlap"),
    ]
    ask(client, ids[2], every="60", arguments='{"note": "y"}', overlap="on", confirmed="1")
    assert seen("SELECT every, payload::text FROM salon_jobs_schedule WHERE id = %s", ids[2]) == [
        (timedelta(minutes=1), '{"note": "y"}')
    ]
    assert seen("SELECT count(*) FROM salon_jobs_schedule") == [(3,)]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("line", "0 25 * * *", "the hour field '25' is wrong"),
        ("line", "", "pass one of them"),
        ("every", "300", "pass one of them"),
        ("every", "soon", "Enter a valid duration"),
        ("timezone", "Asia/Tokio", "did you mean Asia/Tokyo"),
        ("catch_up", "-10", "from zero to 36,500 days"),
        ("jitter", "40000 00:00:00", "from zero to 36,500 days"),
        ("arguments", '{"number": "x"}', "Expected `int`, got `str`"),
        ("arguments", '{"number": 1, "store_id": "x"}', "leave out 'store_id'"),
    ],
)
def test_error_stands_at_its_field(ids: list[int], field: str, value: str, said: str) -> None:
    page = ask(staff(may=EDIT), ids[0], **{**WEEKLY, field: value})
    [(at, error)] = errors_of(page).items()
    assert at == ("line" if "one of them" in said else field)
    assert said in error
    assert seen("SELECT count(*) FROM salon_jobs_schedule WHERE changed_at > created_at") == [(0,)]
    assert logged() == []


def test_redacted_argument_is_kept(ids: list[int], settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "REDACT": ["note"]}
    client = staff(may=EDIT)
    shown_form = ask(client, ids[2])
    assert '"note": "***"' in shown_form
    assert "left as it is, that value is used" in shown_form
    ask(client, ids[2], every="60", arguments='{"note": "***"}', confirmed="1")
    assert seen("SELECT payload::text, every FROM salon_jobs_schedule WHERE id = %s", ids[2]) == [
        ('{"note": "x"}', timedelta(minutes=1))
    ]
    assert "note" not in str(logged())


def test_stale_form_is_refused(ids: list[int]) -> None:
    """Nobody overwrites what another has changed since the form was opened."""
    [shown] = re.findall('name="shown" value="([^"]+)"', ask(staff(may=EDIT), ids[0]))
    ask(staff(may=EDIT), ids[0], **{**WEEKLY, "line": "0 10 * * 1"})
    page = ask(staff(may=EDIT), ids[0], **{**WEEKLY, "line": "0 11 * * 1"}, shown=shown)
    assert re.search(r"it was changed since you opened it: open it again \(the last change here, by user [^:]+: ", page)
    assert 'value="0 11 * * 1"' in page
    assert seen("SELECT line FROM salon_jobs_schedule WHERE id = %s", ids[0]) == [("0 10 * * 1",)]
    assert [done for _, _, done in logged()] == ["changed: line"]


def test_form_words_are_translatable() -> None:
    fields = (*NewScheduleForm.base_fields.values(), *(make() for make in FIELDS.values()))
    assert all(isinstance(field.label, Promise) for field in fields)
    texts = {str(field.help_text): field.help_text for field in fields}
    assert {said for said, text in texts.items() if said and not isinstance(text, Promise)} == {
        "Leave empty for now. Time zone: UTC"  # put together where it is shown
    }


def test_concurrent_save_is_refused(ids: list[int]) -> None:
    row = Schedule.objects.using("operator").get(pk=ids[2])
    alias = alias_of(None)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=alias):
            save_schedule(row, {"note": "first"}, every=timedelta(minutes=1))
            second = elsewhere(pool, lambda: save_schedule(row, {"note": "second"}, every=timedelta(minutes=2)))
            wait_until_waiting()
        with pytest.raises(OptionInvalid, match="it was changed since you opened it"):
            second.result(LIMIT_S)
    assert seen("SELECT every FROM salon_jobs_schedule WHERE id = %s", row.pk) == [(timedelta(minutes=1),)]


def test_deleted_schedule_is_not_saved(ids: list[int]) -> None:
    row = Schedule.objects.using("operator").get(pk=ids[2])
    change("DELETE FROM salon_jobs_schedule WHERE id = %s", ids[2])
    with pytest.raises(OptionInvalid, match="there is no such schedule"):
        save_schedule(row, {}, every=timedelta(seconds=10))
    row.pk, row.key = None, "weekly"
    schedule(tasks.system.call(note="x"), every=timedelta(hours=1), key="weekly")
    with pytest.raises(OptionInvalid, match="key 'weekly': there is a schedule with it already"):
        save_schedule(row, {}, every=timedelta(seconds=10))
    assert seen("SELECT key, every FROM salon_jobs_schedule WHERE store_id IS NULL") == [("weekly", timedelta(hours=1))]


def test_add_schedule_with_and_without_store(ids: list[int], two: tuple[Rows, Rows]) -> None:
    client = staff(may=EDIT)
    assert "Add schedule" in text_of(client, "schedule/")
    shown_form = unescape(page_of(client, "schedule/add/"))
    assert "test-system(note: str = )" in shown_form
    assert f'href="{ADMIN}schedule/">Back' in shown_form
    store = str(two[1].store)
    text = add(client, task="test-store", store_id=store, key="new", **WEEKLY)
    assert "new</a> added." in text
    add(client, task="test-system", key="new", every="10", arguments="{}", overlap="on", confirmed="1")
    added = "SELECT task, store_id::text, overlap, catch_up FROM salon_jobs_schedule WHERE key = 'new' ORDER BY id"
    assert seen(added) == [
        ("test-store", store, False, timedelta(minutes=5)),
        ("test-system", None, True, timedelta(seconds=10)),
    ]
    assert [(flag, text) for _, flag, text in logged()] == [(1, "added"), (1, "added")]
    for fields, at, said in (
        ({"task": "test-store", "store_id": store, "key": "weekly"}, "key", "there is a schedule with it already"),
        ({"task": "test-store", "key": "x"}, "store_id", "needs it"),
        ({"task": "test-system", "store_id": store, "key": "x", "arguments": "{}"}, "store_id", "have none"),
        ({"task": "test-store", "store_id": "x", "key": "x"}, "store_id", "It "),
        ({"task": "nothing", "key": "x"}, "task", "not one of the available choices"),
        ({"task": "test-system", "key": "x"}, "arguments", "no argument 'number'"),
    ):
        [(field, error)] = errors_of(add(client, **{**WEEKLY, **fields})).items()
        assert (field, said in error) == (at, True), error
    assert seen("SELECT count(*) FROM salon_jobs_schedule") == [(5,)]


def test_add_schedule_of_djangos_task(operator: Client, two: tuple[Rows, Rows]) -> None:
    """With a store or without one, and its arguments by name; its context is no argument."""
    calls.add.enqueue(1)
    client, store = staff(may=EDIT), str(two[1].store)
    shown_form = unescape(page_of(client, "schedule/add/"))
    assert "tests.backend.calls.add(left: int, right: int = 1)" in shown_form
    assert "tests.backend.calls.describe(note: str = )" in shown_form
    given = {"task": "tests.backend.calls.add", "every": "10", "confirmed": "1"}
    assert "new</a> added." in add(client, **given, key="new", arguments='{"left": 3}')
    add(client, **given, key="own", store_id=store, arguments='{"left": 4, "right": 5}')
    payload = "(payload -> 'args')::text, (payload -> 'kwargs')::text"
    assert seen(f"SELECT store_id::text, {payload} FROM salon_jobs_schedule WHERE task LIKE '%%add' ORDER BY id") == [
        (None, "[]", '{"left": 3}'),
        (store, "[]", '{"left": 4, "right": 5}'),
    ]
    [(field, error)] = errors_of(add(client, **given, key="x", arguments="{}")).items()
    assert (field, "missing a required argument: 'left'" in error) == ("arguments", True)


def test_viewer_neither_changes_nor_adds(ids: list[int]) -> None:
    client = staff(may=("view_schedule", "view_all_stores"))
    assert "Add schedule" not in text_of(client, "schedule/")
    assert 'value="change"' not in page_of(client, f"schedule/{ids[0]}/change/")
    for pk in (ids[0], ids[2]):
        ask(client, pk, **{**WEEKLY, "line": "1 1 * * *"})
    answer = client.post(f"{ADMIN}schedule/add/", {"task": "test-system", "key": "x", **WEEKLY})
    assert answer.status_code == 403
    assert "salon_jobs.add_schedule" in answer.content.decode()
    assert seen("SELECT count(*), count(*) FILTER (WHERE changed_at > created_at) FROM salon_jobs_schedule") == [(3, 0)]


def test_store_staff_edit_own_schedules_alone(ids: list[int], two: tuple[Rows, Rows]) -> None:
    own, other = (rows.store for rows in two)
    client = staff(own, may=EDIT[:3])
    shown_form = unescape(page_of(client, "schedule/add/"))
    assert "test-store(" in shown_form
    assert "test-system(" not in shown_form
    assert "id_store_id" not in shown_form
    for pk in ids:
        ask(client, pk, **{**WEEKLY, "line": "1 1 * * *", "store": str(own)})
    assert seen("SELECT id FROM salon_jobs_schedule WHERE line = '1 1 * * *'") == [(ids[0],)]
    given = {"key": "mine", **WEEKLY}
    add(client, task="test-store", **given, store=str(own), store_id=str(other))
    errors = errors_of(add(client, task="test-system", **{**given, "key": "no", "arguments": "{}"}, store=str(own)))
    assert errors.keys() == {"task"}
    # Another tab has chosen another store: the form is asked again.
    add(client, task="test-store", **{**given, "key": "no"}, store=str(other))
    assert seen("SELECT key, store_id FROM salon_jobs_schedule WHERE key IN ('mine', 'no')") == [("mine", own)]
