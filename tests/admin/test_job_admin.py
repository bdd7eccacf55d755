"""Takes every action on jobs in the admin, by Django's test client: what is asked, changed, refused, logged."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.http import urlencode

from salon_jobs import flow, task
from salon_jobs.admin import actions, job_actions
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.jobs import control, enqueue, limits, registry, search
from tests import tasks
from tests.admin.pages import ADMIN, as_text, form, hidden_fields, html_of, logged
from tests.management.operator import add, insert, run
from tests.outbox.rows import ORDERS, write
from tests.settings import url_for
from tests.support import change, claim, new_store_id, seen
from tests.support import run as run_claimed
from tests.tasks import Hooks
from tests.waiting import LIMIT_S

JOBS, LIMITS = f"{ADMIN}job/", f"{ADMIN}limit/"


def act(client: Client, action: str, ids: list[int], **fields: Any) -> str:
    answer = client.post(JOBS, form(action, *ids, **fields), follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def test_batches_retry_oldest_and_cancel_newest_first(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (actions, job_actions):
        monkeypatch.setattr(module, "BATCH", 1)
    monkeypatch.setattr("salon_jobs.management.output._BATCH", 1)
    ids = [tasks.ordered_skip.enqueue(number=number).id for number in range(3)]
    ended = "SELECT id FROM salon_jobs_job WHERE state = 'cancelled' ORDER BY finished_at"
    run("cancel", "--task", "test-ordered-skip", "--yes")
    assert seen(ended) == [(each,) for each in reversed(ids)]
    act(client, "retry", ids, confirmed="1")
    assert seen("SELECT job_id FROM salon_jobs_ordered_key") == [(ids[0],)]
    act(client, "cancel", ids, confirmed="1")
    assert seen(ended) == [(each,) for each in reversed(ids)]


def test_nothing_changes_before_confirmation(client: Client) -> None:
    ids = [add(state="failed"), add()]
    before = seen("SELECT * FROM salon_jobs_job ORDER BY id")
    for action in ("retry", "cancel", "discard", "change", "pause"):
        assert "2 jobs selected" in (text := act(client, action, ids)), action
    assert "Queue default" in text
    assert seen("SELECT * FROM salon_jobs_job ORDER BY id") == before
    assert logged() == []


def test_question_counts_selected_jobs(client: Client) -> None:
    def asked(action: str, *ids: int) -> list[str]:
        page = act(client, action, list(ids)).split('id="content"')[1].split("<ul>")[0]
        lines = [unescape(line) for line in re.findall("<p>(.*?)</p>", page)]
        assert lines[0].endswith(" selected.")
        return lines[1:]

    queued, running = add(), add(state="running")
    failed = [add(state="failed") for _ in range(2)]
    assert asked("cancel", queued) == ["1 queued job: cancelled now."]
    assert asked("cancel", queued, running, *failed) == [
        "2 failed jobs: cancelled now.",
        "1 queued job: cancelled now.",
        "1 running job: cancelled when the handler stops.",
    ]
    assert asked("retry", queued, failed[0]) == [
        "1 failed job: queued again, with at least one more attempt.",
        "1 queued job: nothing is done.",
    ]
    assert asked("discard", *failed) == ["2 failed jobs: discarded, to run again only after a retry."]


def test_jobs_enqueued_after_question_stay(client: Client) -> None:
    asked = add()
    question = client.post(f"{JOBS}?task=ping", form("cancel", asked, select_across="1")).content.decode()
    assert "1 job selected" in question
    answer = hidden_fields(question)
    later = add()
    client.post(f"{JOBS}?task=ping", {**answer, "confirmed": "1"})
    assert dict(seen("SELECT id, state FROM salon_jobs_job")) == {asked: "cancelled", later: "queued"}


def test_failed_jobs_are_sorted_by_end(client: Client) -> None:
    ended = "now() - interval '1 h' * {}"
    ids = [add(state="failed", started_at=datetime.now(UTC), finished_at=datetime.now(UTC)) for _ in range(3)]
    for job_id, hours in zip(ids, (3, 1, 2), strict=True):
        at = ended.format(hours)
        change(f"UPDATE salon_jobs_job SET started_at = {at}, finished_at = {at} WHERE id = %s", job_id)

    def listed(query: str) -> list[int]:
        page = html_of(client, f"job/?{query}")
        assert (">Ended<" in re.sub(r"</?a[^>]*>|\s", "", page)) is ("state" in query)
        return [int(found) for found in re.findall(r'name="_selected_action" value="(\d+)"', page)]

    newest = [ids[1], ids[2], ids[0]]
    assert listed("state__exact=failed") == newest
    assert listed("state__exact=failed&o=4") == newest[::-1]
    assert listed("state__exact=failed&o=-4") == newest
    assert listed("") == ids[::-1]
    assert listed("state__exact=failed&task=ping&o=4") == ids[::-1], "no index knows when those of a task failed"
    text = re.sub(r"<[^>]+>|\s+", " ", html_of(client, "job/?state__exact=failed"))
    assert "1 h ago" in text
    assert "enqueued" in text


def test_retry_at_later_time(client: Client) -> None:
    failed, waiting = add(state="failed"), add()
    text = act(client, "retry", [failed, waiting], at="2030-05-06T03:00", confirmed="1")
    assert "1 job queued again for 2030-05-06 03:00" in text
    assert f"Job {waiting} was not queued again for 2030" in text
    assert seen("SELECT run_at FROM salon_jobs_job WHERE id = %s", failed) == [(datetime(2030, 5, 6, 3, tzinfo=UTC),)]
    assert "Enter a valid date/time" in act(client, "retry", [failed], at="tomorrow", confirmed="1")


def test_running_job_is_asked_to_end(client: Client) -> None:
    """It still runs, so neither the message nor the log says that it is cancelled; its page names the user later."""
    failed, running = add(state="failed"), add(state="running")
    text = as_text(act(client, "cancel", [failed, running], confirmed="1"))
    assert f"1 job cancelled. ping #{failed}" in text
    assert f"1 job asked to end. ping #{running}" in text
    assert "2 jobs cancelled" not in text
    assert sorted(logged()) == sorted([(str(failed), "cancelled"), (str(running), "asked to end")])
    ended = "state = 'cancelled', reason = 'cancelled', finished_at = now(), leased_by = NULL"
    change(f"UPDATE salon_jobs_job SET {ended} WHERE id = %s", running)
    assert "Outcome: cancelled by boss" in as_text(html_of(client, f"job/{running}/change/"))


def test_discard_is_logged_and_spares_running(client: Client) -> None:
    failed, running = add(state="failed"), add(state="running")
    text = act(client, "discard", [failed, running], confirmed="1")
    assert f'1 job discarded. <a href="{JOBS}{failed}/change/">ping #{failed}</a>' in text
    assert "only queued and failed jobs can be discarded" in text
    assert logged() == [(str(failed), "discarded")]


def test_run_again_checks_arguments(client: Client) -> None:
    old = add(task="test-system", state="failed", payload='{"note": "old"}', max_attempts=2)
    assert 'value="run_again"' in html_of(client, f"job/{old}/change/")
    assert 'value="run_again"' not in html_of(client, "job/")
    form = unescape(act(client, "run_again", [old]))
    assert "test-system(note: str = )" in form
    assert '"note": "old"' in form
    for wrong, said in (
        ("{", "line 1 column 2"),
        ("[]", "a JSON object"),
        ('{"note": 7}', "Expected `str`, got `int` - at `$.note`"),
        ('{"not": ""}', "no argument 'not'; did you mean 'note'?"),
    ):
        text = unescape(act(client, "run_again", [old], arguments=wrong, confirmed="1"))
        assert re.search(r'<ul class="errorlist"[^>]*><li>[^<]*' + re.escape(said), text), text
        assert f">{wrong}</textarea>" in text.replace("\n", "")
    text = act(client, "run_again", [old], arguments='{"note": "new"}', confirmed="1")
    [(new, note, state)] = seen("SELECT id, payload ->> 'note', state FROM salon_jobs_job WHERE id <> %s", old)
    assert (note, state) == ("new", "queued")
    assert f'<a href="{JOBS}{new}/change/">test-system #{new}</a> enqueued.' in text
    assert logged() == [
        (str(old), f"run again with other arguments, as job {new}"),
        (str(new), f"enqueued with other arguments than job {old}"),
    ]
    assert "Choose a single job" in act(client, "run_again", [old, new], arguments="{}", confirmed="1")
    undeclared = add(task="undeclared", state="failed")
    text = act(client, "run_again", [undeclared], arguments="{}", confirmed="1")
    assert "no task is named" in unescape(text)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(3,)]


def test_run_again_keeps_redacted_argument(client: Client, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "REDACT": ["note"]}
    old = add(task="test-system", state="failed", payload='{"note": "hush"}')
    form = unescape(act(client, "run_again", [old]))
    assert '"note": "***"' in form
    assert "left as it is, that value is used" in form
    assert "hush" not in form
    act(client, "run_again", [old], arguments='{"note": "***"}', confirmed="1")
    act(client, "run_again", [old], arguments='{"note": "other"}', confirmed="1")
    assert seen("SELECT payload ->> 'note' FROM salon_jobs_job ORDER BY id") == [("hush",), ("hush",), ("other",)]


def test_change_priority_and_queue(client: Client) -> None:
    job_id = add()
    assert "1 job given priority -5 and given queue night." in act(
        client, "change", [job_id], priority="-5", queue="night", confirmed="1"
    )
    act(client, "change", [job_id], priority="0", confirmed="1")
    assert seen("SELECT priority, queue FROM salon_jobs_job") == [(0, "night")]
    assert "Give a priority, a queue or both." in act(client, "change", [job_id], confirmed="1")
    assert "less than or equal to 32767" in act(client, "change", [job_id], priority="40000", confirmed="1")


def test_pause_scopes_of_selected_jobs(client: Client, stores: list[UUID]) -> None:
    ids = [add(store_id=stores[0]), add(queue="night")]
    scopes = ["queue:night", "task:ping", f"store:{stores[0]}"]
    text = act(client, "pause", ids, verb="paused", scopes=scopes, confirmed="1")
    assert "Queue night paused." in text
    again = act(client, "pause", ids, verb="paused", scopes=scopes[:1], confirmed="1")
    assert "Queue night: it is paused already." in again
    assert "Store Salon 0 paused." in text
    assert "store Salon 0 is paused by" in html_of(client, "job/")
    asked = act(client, "pause", ids)
    assert "Store Salon 0 (paused now)" in asked
    assert "<h1>Pause or resume queue, task or store of selected jobs</h1>" in asked
    rules = "SELECT kind, name, paused FROM salon_jobs_limit ORDER BY id"
    assert seen(rules) == [("queue", "night", True), ("task", "ping", True), ("store", str(stores[0]), True)]
    act(client, "pause", ids, verb="resumed", scopes=scopes[:1], confirmed="1")
    assert seen(rules)[0] == ("queue", "night", False)
    assert [message for _, message in logged()] == ["paused", "paused", "paused", "resumed"]
    assert "is not one of the available choices" in act(
        client, "pause", ids, verb="paused", scopes=["queue:others"], confirmed="1"
    )


def test_retry_whole_kind_of_failures(client: Client) -> None:
    ended: dict[str, Any] = {"state": "failed", "finished_at": datetime.now(UTC)}
    alike = [add(**ended, fingerprint=-7, error_class="builtins.KeyError") for _ in range(3)]
    ended["finished_at"] += timedelta(seconds=1)
    other = add(**ended, fingerprint=8, error_class="builtins.ValueError")
    insert("job_error", job_id=alike[2], attempt=1, error_class="", message="the sample")
    text = html_of(client, "job/failures/")
    assert "the sample" in text
    assert text.index("ValueError") < text.index("KeyError")
    query = "?state__exact=failed&fingerprint=-7"
    assert "3 jobs" in client.get(JOBS + query).content.decode()
    retry = form("retry", alike[2], select_across="1")
    assert "3 jobs selected" in client.post(JOBS + query, retry).content.decode()
    client.post(JOBS + query, {**retry, "confirmed": "1"})
    assert seen("SELECT id FROM salon_jobs_job WHERE state = 'failed'") == [(other,)]
    assert "0 jobs" in html_of(client, "job/?fingerprint=rubbish")


def test_list_order_stays_indexed(client: Client) -> None:
    """No address has every row sorted."""
    ids = [add(task="b"), add(task="a"), add(task="c")]
    for order, expected in (("2", ids[::-1]), ("-2.9", ids[::-1]), ("1", ids), ("-1", ids[::-1])):
        text = html_of(client, f"job/?o={order}")
        assert list(map(int, re.findall(r"/job/(\d+)/change/", text))) == expected, order


def test_job_page_shows_origin_retries_no_secret(client: Client) -> None:
    tick = datetime(2026, 5, 6, tzinfo=UTC)
    job_id = add(
        tick=tick, payload='{"api_key": "tulip", "number": 41}', run_at=tick + timedelta(days=9000), attempts=1
    )
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly')")
    change("INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id) VALUES ('nightly', %s, %s)", tick, job_id)
    text = html_of(client, f"job/{job_id}/change/")
    assert "cron entry nightly" in text
    assert "tulip" not in text
    assert "Attempt 2: 2050-" in text
    assert "and 14 more" in text
    child = add(fan_out_id=77)
    assert "/admin/salon_jobs/fanoutrecord/77/change/" in html_of(client, f"job/{child}/change/")
    assert f'href="{JOBS}{job_id}/change/"' in html_of(client, "crontick/")
    change(
        "INSERT INTO salon_jobs_fan_out (id, task, digest, inserted) OVERRIDING SYSTEM VALUE VALUES (77, 'ping', '', 9)"
    )
    page = html_of(client, "fanoutrecord/77/change/")
    assert f'<a href="{JOBS}?fan_out_id__exact=77">8 of 9 done</a>' in page
    assert "1 job" in html_of(client, "job/?fan_out_id__exact=77")


def test_job_page_shows_follow_up(client: Client) -> None:
    def shown(job_id: int) -> str:
        return field_of(client, job_id, "Then")

    first, _ = (
        each.id
        for each in tasks.system.enqueue_many(
            [tasks.system.call(), tasks.system.call()], then=tasks.system.call(note="sum")
        )
    )
    assert shown(first) == "test-system, after 2 more jobs"
    assert shown(add()) == ""
    change("DELETE FROM salon_jobs_follow_up")
    assert shown(first) == "its follow-up has been enqueued"


def test_search_newest_payloads_and_errors(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(term: str) -> list[int]:
        page = html_of(client, f"job/?{urlencode({'q': term})}")
        return sorted(map(int, re.findall(r'name="_selected_action" value="(\d+)"', page)))

    old, jane, joe, failed = (
        add(payload=json.dumps({"account": 12, "note": "old"})),
        add(payload=json.dumps({"account": 12, "name": 'J\u00e4ne "Q"', "password": "tulip"})),
        add(payload=json.dumps({"account": 123, "name": "Joe"})),
        add(state="failed", attempts=1),
    )
    insert("job_error", job_id=failed, attempt=1, error_class="builtins.KeyError", message="no card 4711 of J\u00c4NE")
    assert found("account=12") == [old, jane]
    assert found("j\u00e4ne") == [jane, failed]
    assert found('e "Q"') == [jane]
    assert found("4711") == [failed]
    assert found("OLD") == [old]
    assert found(str(joe)) == [joe], "by its number, although payloads contain that digit"
    for hidden in ("tulip", "password=tulip", "tul"):
        assert found(hidden) == [], "REDACT's values cannot be guessed"
    monkeypatch.setattr(search, "SEARCHED", 3)
    assert found("account=12") == [jane], "only the newest are searched"


def test_ordered_job_page_shows_turn(client: Client, process_id: int, hooks: Hooks) -> None:
    first, second, third = (tasks.ordered.enqueue("ada", number).id for number in range(3))
    page = html_of(client, f"job/{second}/change/")
    assert f'<a href="{JOBS}{first}/change/">it is the turn of #{first} test-ordered: queued</a>' in page
    assert "1 job waiting after this one" in page
    said = run("show", str(third))[0]
    assert f"it is the turn of #{first} test-ordered: queued; 1 job waiting before this one" in said
    assert f"comes after #{first} , which has its concurrency key" in field_of(client, second, "Waiting because")
    assert field_of(client, second, "Due") == ""
    control.cancel_jobs(third)
    assert field_of(client, third, "Due") == ""
    hooks.system = lambda **_: 1 / 0
    run_claimed(claim(process_id)[0], process_id)
    turn = f"it is the turn of #{first} test-ordered: failed; retry or discard it, and the next one runs"
    assert turn in field_of(client, second, "Order")
    assert turn in run("show", str(second))[0]
    other = tasks.system.enqueue().id
    assert field_of(client, other, "Order") == ""


def test_list_links_job_that_others_wait_for(client: Client, database: None) -> None:
    """Of an order and of a flow, as on the page of each; and the terminal's list names it."""
    first, second = (tasks.ordered.enqueue("ada", number).id for number in range(2))
    with flow("order") as order:
        parts = [order.add(tasks.system.call()) for _ in range(2)]
        after_one = order.add(tasks.system.call(), after=parts[0])
        after_both = order.add(tasks.system.call(), after=parts)
    link = f'<a href="{JOBS}{{0}}/change/">#{{0}}</a>'
    linked = {
        second: (first, ", which has its concurrency key"),
        after_one.id: (parts[0].id, " of its flow"),
        after_both.id: (parts[0].id, " and others of its flow"),
    }
    listed, said = html_of(client, "job/"), run("list")[0]
    for job, (before, rest) in linked.items():
        told = f"comes after {link.format(before)}{rest}"
        assert told in listed
        assert told in html_of(client, f"job/{job}/change/")
        assert f"waiting: comes after #{before}{rest}" in said


def test_run_again_explains_flow_and_order(client: Client, process_id: int, hooks: Hooks) -> None:
    """The new job is of no flow, and waits in its order."""
    with flow("order") as order:
        member = order.add(tasks.ordered.call())
    hooks.system = lambda **_: 1 / 0
    run_claimed(claim(process_id)[0], process_id)
    text = act(client, "run_again", [member.id])
    assert "The new job is no member of the flow" in text
    assert f"until test-ordered #{member.id} is discarded" in text


def test_job_page_draws_flow(client: Client, process_id: int, hooks: Hooks) -> None:
    with flow("order") as order:
        parts = [order.add(tasks.system.call(), max_attempts=1) for _ in range(4)]
        each = [order.add(tasks.in_flow.call(), after=part) for part in parts]
        joined = order.add(tasks.system.call(), after=each, when="ended")
        told = order.add(tasks.in_flow.call(), after=joined, when="failed")

    def refuse(**_: object) -> None:
        raise OSError

    hooks.system = refuse
    [first] = claim(process_id, 1)
    run_claimed(first, process_id)
    page = html_of(client, f"job/{joined.id}/change/")
    box = r'<foreignObject x="(\d+)" y="(\d+)"[^>]*><a href="([^"]*)"( aria-current="true")? title="([^"]*)"'
    here = ' aria-current="true"'
    listed = f"{JOBS}?flow={order.id}&amp;task="
    end = f"test-system #{joined.id}"
    assert re.findall(box, page) == [
        ("0", "0", f"{listed}test-system", "", f"test-system × 4: 1 failed, 3 queued (#{first.id} failed)"),
        ("266", "0", f"{listed}test-flow", "", "test-flow × 4: 3 held, 1 skipped, after test-system × 4"),
        ("532", "0", f"{JOBS}{joined.id}/change/", here, f"{end}: held, after test-flow × 4, however they end"),
        ("798", "0", f"{JOBS}{told.id}/change/", "", f"test-flow #{told.id}: held, after {end}, if it fails"),
    ]
    assert re.findall(r'<path class="(\w+)" d="M(\d+) \d+C[^"]* (\d+) \d+"', page) == [
        ("succeeded", "210", "266"),
        ("ended", "476", "532"),
        ("failed", "742", "798"),
    ]
    assert '<span class="salon-jobs-badge bad">1 failed</span>' in page
    assert f"comes after #{each[1].id} and others of its flow" in field_of(client, joined.id, "Waiting because")
    said = run("show", str(joined.id))[0]
    assert f"> {end}: held, after test-flow × 4, however they end" in said.splitlines()
    [start, second, *_] = json.loads(run("show", str(joined.id), "--json")[0])["flow"]["stages"]
    assert start["jobs"] == {"failed": [parts[0].id], "queued": [each.id for each in parts[1:]]}
    assert (second["after"], second["condition"]) == ([0], "succeeded")
    in_list = html_of(client, f"job/?flow={order.id}&task=test-flow")
    assert re.findall(r'name="_selected_action" value="(\d+)"', in_list) == [str(m.id) for m in (told, *each[::-1])]
    assert field_of(client, joined.id, "Due") == ""
    assert field_of(client, parts[1].id, "Due") != ""
    for shown in (page, said, run("list")[0]):
        assert "9999-12-31" not in shown
        assert "in 2912" not in shown, "days until then"
    assert field_of(client, add(), "Flow") == ""


def test_long_flow_is_drawn_in_part(client: Client) -> None:
    with flow("chain") as chain:
        last = chain.add(tasks.system.call())
        members = [last := chain.add(tasks.system.call(), after=last) for _ in range(99)]
    page = html_of(client, f"job/{members[49].id}/change/")
    assert page.count("<foreignObject") == 60
    assert "Left out: 40 stages further away." in page
    assert run("show", str(members[0].id))[0].rstrip().endswith("Left out: 40 stages further away.")


def field_of(client: Client, job_id: int, label: str) -> str:
    """Return a field of a job's page as text, "" if it has none."""
    page = html_of(client, f"job/{job_id}/change/")
    found = re.search(rf"<label>{label}:</label>(.*?)</div>", page, re.DOTALL)
    return "" if found is None else " ".join(re.sub(r"<[^>]+>", " ", found[1]).split())


@pytest.mark.parametrize(
    ("jobs", "fan_out", "expected", "link"),
    [
        (1, None, "the end of ping #7", "job/7/change/"),
        (1200, None, "the end of 1,200 jobs of ping, #7 to #9", None),
        (2, 5, "the end of 2 jobs of ping, fan-out 5", "fanoutrecord/5/change/"),
    ],
)
def test_job_page_shows_what_it_followed(
    client: Client, jobs: int, fan_out: int | None, expected: str, link: str | None
) -> None:
    follows = {"task": "ping", "jobs": jobs, "first": 7, "last": 7 if jobs == 1 else 9, "fan_out": fan_out}
    job_id = add(follows=json.dumps(follows))
    assert field_of(client, job_id, "Enqueued by") == expected
    assert (f"/admin/salon_jobs/{link}" in html_of(client, f"job/{job_id}/change/")) == (link is not None)
    assert expected in run("show", str(job_id))[0]


def test_run_time_excludes_wait_in_worker(client: Client) -> None:
    job_id = add(state="failed", attempts=1)
    change(
        "UPDATE salon_jobs_job SET started_at = finished_at - interval '107 ms',"
        " claimed_at = finished_at - interval '4107 ms'"
    )
    assert field_of(client, job_id, "Ran for") == "107 ms"
    assert field_of(client, job_id, "Waited in the worker") == "4 s"
    assert "waited in the worker  4 s" in run("show", str(job_id))[0]
    change("UPDATE salon_jobs_job SET claimed_at = NULL")
    assert field_of(client, job_id, "Waited in the worker") == ""
    assert "waited in the worker" not in run("show", str(job_id))[0]


def test_optional_field_is_computed_once(client: Client) -> None:
    job_id = add(attempts=1, tick=datetime(2026, 5, 6, tzinfo=UTC))
    insert("job_error", job_id=job_id, attempt=1, error_class="builtins.KeyError")
    with CaptureQueriesContext(connections["operator"]) as asked:
        assert "KeyError" in html_of(client, f"job/{job_id}/change/")
    statements = Counter(query["sql"] for query in asked.captured_queries)
    assert [sql for sql, times in statements.items() if times > 1] == []


def test_trace_link_needs_setting(client: Client, settings: Any) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    page = f"{JOBS}{add(trace=json.dumps({'traceparent': f'00-{trace}-00f067aa0ba902b7-01'}))}/change/"
    text = client.get(page).content.decode()
    assert trace in text
    assert f'{trace}"' not in text
    settings.SALON_JOBS = {**settings.SALON_JOBS, "TRACE_LINK": "https://tempo.example/trace/{trace_id}"}
    assert f'href="https://tempo.example/trace/{trace}"' in client.get(page).content.decode()
    settings.SALON_JOBS = {**settings.SALON_JOBS, "TRACE_LINK": "javascript:{trace_id}"}
    with pytest.raises(ConfigurationError, match="TRACE_LINK"):
        _ = conf.trace_link
    odd = add(trace='"<script>"')
    settings.SALON_JOBS = {**settings.SALON_JOBS, "TRACE_LINK": None}
    assert "field-trace_link" not in html_of(client, f"job/{odd}/change/")


def test_list_row_shows_error_and_acts(client: Client) -> None:
    failed, other = (add(state="failed", attempts=3, max_attempts=3, error_class="shop.CardDeclined") for _ in "ab")
    insert("job_error", job_id=failed, attempt=3, error_class="shop.CardDeclined", message="no funds <b>")
    change("UPDATE salon_jobs_job SET created_at = now() - interval '3 h', finished_at = now()")
    change("UPDATE salon_jobs_job SET started_at = finished_at - interval '40 s'")
    queued = add(queue="nobody")
    page = html_of(client, "job/")
    row = re.sub(r"<(?!time|/time)[^>]*>", " ", page.split(f"/job/{failed}/change/")[1].split("</tr>")[0])
    shown = [f"#{failed}", "failed", "3 of 3 attempts", "CardDeclined: no funds &lt;b&gt;", ">3 h ago<", "ran 40 s"]
    assert [text for text in [*shown, "Retry"] if text not in row] == []
    assert "no worker is running" in page
    assert re.search(r"failed <b>2</b>", page)
    assert f'value="cancel:{queued}"' in page
    assert f'value="retry:{queued}"' not in page
    question = client.post(JOBS, {"row_action": f"retry:{failed}"}).content.decode()
    assert "1 job selected" in question
    assert f"#{failed} ping · queue default · failed · shop.CardDeclined" in question
    answer = hidden_fields(question)
    client.post(JOBS, {**answer, "confirmed": "1"})
    assert dict(seen("SELECT id, state FROM salon_jobs_job")) == {failed: "queued", other: "failed", queued: "queued"}


def test_action_returns_to_job_page(client: Client) -> None:
    """It never leads to another site."""
    job_id = add()
    page = f"{JOBS}{job_id}/change/"
    assert f'name="back" value="{page}"' in client.get(page).content.decode()
    assert f'name="back" value="{page}"' in client.post(JOBS, form("cancel", job_id, back=page)).content.decode()
    for back, to in ((page, page), ("https://evil.example/", JOBS)):
        assert client.post(JOBS, form("cancel", job_id, confirmed="1", back=back))["Location"] == to
    assert 'value="cancel"' not in client.get(page).content.decode(), "a cancelled job offers its retry"


def test_traceback_shows_its_last_frames(client: Client) -> None:
    """The others are folded, and a section beside the attempts has the arguments."""
    frames = "".join(f'  File "shop/step.py", line {line}, in step\n    return step()\n' for line in range(30))
    job = add(state="failed", payload='{"account": 12}')
    for attempt, given in ((1, "shop.Declined: short"), (2, f"Traceback:\n{frames}shop.Declined: long\nand more")):
        insert("job_error", job_id=job, attempt=attempt, error_class="shop.Declined", traceback=given)
    page = html_of(client, f"job/{job}/change/")
    folded, shown = re.findall("<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[:2]
    assert "<summary>51 earlier lines</summary>" in page
    assert unescape(f"{folded}\n{shown}") == f"Traceback:\n{frames}shop.Declined: long\nand more"
    assert unescape(shown).startswith('  File "shop/step.py", line 25, in step\n')
    assert page.count("earlier line") == 1
    assert page.index("field-errors") < page.index("salon-jobs-aside") < page.index("field-shown_payload")


def test_page_of_deleted_job_says_why(client: Client) -> None:
    job_id = add(state="failed")
    act(client, "retry", [job_id], confirmed="1")
    change("DELETE FROM salon_jobs_job")
    text = as_text(html_of(client, f"job/{job_id}/change/", 404))
    assert f"Job {job_id} does not exist, or has ended and been deleted. Succeeded jobs are deleted at once" in text
    assert "Failed jobs are kept for 90 d." in text
    assert "Cancelled jobs are kept for 7 d." in text
    assert re.search(r"What was done to it here\s+(now|[\d.]+ m?s ago) by boss: retried", text)
    for rubbish in ("rubbish", "%00"):
        assert "That job does not exist" in html_of(client, f"job/{rubbish}/change/", 404)


def test_limit_list_shows_use_and_pauses(client: Client, stores: list[UUID]) -> None:
    limits.limit(task="ping", max_concurrency=4)
    limits.pause(store_id=stores[0], by="dana")
    add(state="running")
    shown = as_text(html_of(client, "limit/").split('id="result_list"')[1])
    assert re.search(r"store Salon 0 paused by dana since [-:\d ]+UTC 0, no limit", shown), shown
    assert "task ping active 1 of 4" in shown
    [(store_limit,)] = seen("SELECT id FROM salon_jobs_limit WHERE kind = 'store'")
    assert "<h2>store Salon 0</h2>" in html_of(client, f"limit/{store_limit}/change/")
    ids = [str(number) for (number,) in seen("SELECT id FROM salon_jobs_limit ORDER BY id")]
    for action, paused in (("pause", [True, True]), ("resume", [False, False])):
        client.post(LIMITS, form(action, *ids))
        assert [each for (each,) in seen("SELECT paused FROM salon_jobs_limit ORDER BY id")] == paused
        name = "boss" if all(paused) else ""
        assert seen("SELECT paused_by FROM salon_jobs_limit WHERE kind = 'task'") == [(name,)]
    assert logged() == [(ids[0], "paused"), (ids[0], "resumed"), (ids[1], "resumed")]


def test_rate_has_a_unit(client: Client) -> None:
    limits.limit(task="ping", rate="100/m")
    [(number,)] = seen("SELECT id FROM salon_jobs_limit")
    page, sent = f"{LIMITS}{number}/change/", {"kind": "task", "name": "ping", "rate": "7/w"}
    assert 'name="rate" value="100/m"' in client.get(page).content.decode()
    assert "Give a number of jobs per second above 0" in client.post(page, sent).content.decode()
    client.post(page, {**sent, "rate": "36/h"})
    assert seen("SELECT rate FROM salon_jobs_limit") == [(0.01,)]
    assert "36 jobs per hour" in html_of(client, "limit/")


@pytest.mark.parametrize(
    ("page", "sent"),
    [
        (LIMITS, {"action": "resume"}),
        (LIMITS, {"action": "delete", "confirmed": "1", "store": ""}),
        (f"{LIMITS}{{}}/change/", {"kind": "queue", "name": "night", "max_concurrency": "2"}),
        (f"{LIMITS}{{}}/delete/", {"post": "yes"}),
        (JOBS, {"action": "pause", "verb": "resumed", "scopes": "queue:night", "confirmed": "1"}),
    ],
)
def test_raised_limit_wakes_workers(
    client: Client, monkeypatch: pytest.MonkeyPatch, page: str, sent: dict[str, str]
) -> None:
    limits.pause(queue="night")
    job_id = add(queue="night")
    [(number,)] = seen("SELECT id FROM salon_jobs_limit")
    with psycopg.connect(url_for("app"), autocommit=True) as worker:
        worker.execute(f"LISTEN {enqueue.wake_ups.channel}".encode())
        enqueue.wake_ups.reset()
        selected = form("", job_id if page == JOBS else number)
        assert client.post(page.format(number), {**selected, **sent}).status_code == 302
        change("SELECT pg_notify(%s, 'end')", enqueue.wake_ups.channel)
        first, *_ = worker.notifies(timeout=LIMIT_S, stop_after=1)
    assert first.payload == "", "the wake-up comes before what is sent last"
    assert seen("SELECT count(*) FROM salon_jobs_limit WHERE paused") == [(0,)]


def test_message_page_shows_state_of_destination(client: Client) -> None:
    page = f"/admin/salon_jobs/message/{write('pending')}/change/"
    assert "Ready to send" in client.get(page).content.decode()
    down = {"outage_since": datetime.now(UTC), "outage_code": "BROKER.DOWN"}
    insert("destination", aggregate_type=ORDERS, paused=True, **down)
    text = client.get(page).content.decode()
    assert f'<a href="/admin/salon_jobs/destinationstate/?{urlencode({"q": ORDERS})}">{ORDERS}</a>' in text
    assert "Destination is paused · destination has been down since" in text
    assert "destination paused" in html_of(client, "message/")
    counts = {"paused": "1 destination", "down": "0 destinations", "no outage": "0 destinations"}
    for state, count in counts.items():
        assert count in html_of(client, f"destinationstate/?state={state}"), state


def test_declared_limits_are_listed(client: Client, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STORE_CONCURRENCY": 3}
    task(name="test-one-at-a-time", max_concurrency=1, concurrency_key="{card}", key_concurrency=2)(_charge)
    try:
        add(task="test-one-at-a-time", state="running", concurrency_key="visa", store_id=new_store_id())
        text = html_of(client, "limit/")
        assert "No limits" not in text
        declared = (
            "Limits declared in code: each key of task test-one-at-a-time, 2 at once (busiest runs 1); "
            "each store, 3 at once (busiest runs 1)"
        )
        assert f"{declared}; task test-one-at-a-time, 1 at once (1 running)." in text
        limits.limit(task="test-one-at-a-time", max_concurrency=4)
        text = html_of(client, "limit/")
        assert f"{declared}." in text
        assert "1 of 4 (declared: 1)" in text
    finally:
        registry.unregister("test-one-at-a-time")


def _charge(card: str) -> None: ...


def test_unlimited_is_a_choice(client: Client) -> None:
    sent = {"kind": "task", "name": "ping", "unlimited": "on"}
    both = client.post(f"{LIMITS}add/", {**sent, "max_concurrency": "3"}).content.decode()
    assert "Clear this, or the number of jobs that may run at once." in both
    assert client.post(f"{LIMITS}add/", sent).status_code == 302
    assert seen("SELECT max_concurrency FROM salon_jobs_limit") == [(2**31 - 1,)]
    [(number,)] = seen("SELECT id FROM salon_jobs_limit")
    page = html_of(client, f"limit/{number}/change/")
    assert re.search(r'name="unlimited"[^>]* checked', page)
    assert '<option value="ping">' in page, "known tasks are suggested"
    assert str(2**31 - 1) not in page
    some = {**sent, "unlimited": "", "max_concurrency": "3"}
    assert client.post(f"{LIMITS}{number}/change/", some).status_code == 302
    assert seen("SELECT max_concurrency FROM salon_jobs_limit") == [(3,)]


def test_cancel_is_not_offered_twice(client: Client) -> None:
    job_id = add(state="running", attempts=2, rescues=1, cancel_requested_at=datetime.now(UTC))
    page = html_of(client, f"job/{job_id}/change/")
    assert "attempt 3 of 25; 1 process died running it" in page
    assert "Upcoming retries" not in page
    assert 'value="cancel"' not in page
    assert f'value="cancel:{job_id}"' not in html_of(client, "job/")


@pytest.mark.parametrize("formats", [None, ["project.formats"]])
def test_times_have_seconds_and_zone(client: Client, settings: Any, formats: Any) -> None:
    """The formats of the project do not change it."""
    settings.FORMAT_MODULE_PATH, settings.LANGUAGE_CODE = formats, "en-us"
    job_id = add(created_at=datetime(2026, 5, 6, 3, 4, 5, tzinfo=UTC))
    assert "2026-05-06 03:04:05 UTC</time>, " in html_of(client, f"job/{job_id}/change/")
