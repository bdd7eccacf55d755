"""Runs ``manage.py salon_jobs messages`` as operators do."""

from __future__ import annotations

import getpass
import json
from io import StringIO
from uuid import UUID

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test.utils import CaptureQueriesContext

from salon_jobs.control import pause_destination
from salon_jobs.outbox import queries
from tests.outbox.scene import assert_bounded, crowd, fill
from tests.outbox.test_operate_messages import ORDERS, block, blocked, statuses, write
from tests.settings import url_for
from tests.support import change, seen


def run(*arguments: str) -> tuple[str, str]:
    """Run an action; returns what it wrote to standard output and standard error."""
    out, err = StringIO(), StringIO()
    call_command("salon_jobs", "messages", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_without_an_action_it_names_them() -> None:
    with pytest.raises(CommandError, match="Choose an action: list, show, retry, skip, send-skipped, parked, unpark"):
        run()


def test_list_filters_and_is_bounded(stores: list[UUID]) -> None:
    failed, sent = write("failed", aggregate="1", store=stores[0]), write("published", aggregate="2", store=stores[1])
    waiting, stock = write(aggregate="1"), write(kind="rn::nats:::stock")

    def listed(*arguments: str) -> list[int]:
        return [row["id"] for row in json.loads(run("list", "--json", *arguments)[0])]

    assert listed() == [stock, waiting, sent, failed]
    assert listed("--limit", "2") == [stock, waiting]
    assert listed("--status", "failed") == [failed]
    assert listed("--aggregate-type", ORDERS, "--aggregate-id", "1") == [waiting, failed]
    assert listed("--status", "pending", "--aggregate-type", ORDERS, "--aggregate-id", "1") == [waiting]
    assert listed("--store", str(stores[1])) == [sent]
    assert listed("--event", "nonsense") == []
    change("UPDATE salon_jobs_message SET created_at = now() - interval '3 days' WHERE id = %s", failed)
    assert listed("--since", "1h") == [stock, waiting, sent]
    assert listed("--since", "2026-01-01T00:00+09:00") == [stock, waiting, sent, failed]
    assert run("list")[0].splitlines()[0].split()[:3] == ["id", "status", "destination"]
    assert "payload" not in run("list", "--json")[0]
    assert run("list", "--event", "nonsense")[1].splitlines()[0] == "no message matches"
    for wrong in ("yesterday", "2026-01-01T00:00"):
        with pytest.raises(CommandError, match="is not a time; write 12h"):
            run("list", "--since", wrong)


def test_what_no_index_serves_is_searched_among_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "NEWEST", 1000)
    crowd(ORDERS)
    assert json.loads(run("list", "--event", "rare", "--json")[0]) == []
    assert "only the newest" in run("list", "--event", "rare")[1]
    store = "00000000-0000-0000-0000-000000000003"
    for arguments in (
        (),
        ("--event", "rare"),
        ("--store", store),
        ("--status", "pending"),
        ("--status", "published", "--aggregate-type", ORDERS),
        ("--aggregate-type", ORDERS, "--aggregate-id", "77"),
        ("--since", "1h"),
        ("--status", "failed"),
        ("--status", "failed", "--store", store),
        ("--status", "failed", "--aggregate-type", ORDERS, "--aggregate-id", "400"),
        ("--status", "pending", "--aggregate-type", ORDERS, "--aggregate-id", "9"),
    ):
        with CaptureQueriesContext(connections["operator"]) as captured:
            run("list", *arguments)
        assert_bounded(captured, 1050, arguments)


def test_show_names_the_payload_and_what_holds_it_back() -> None:
    head, behind = write("failed", aggregate="1"), write(aggregate="1")
    block(head, "parked")
    shown = json.loads(run("show", str(behind), "--json")[0])
    assert (shown["payload"], shown["blocked_by"]["head_id"]) == ({}, head)
    out, _ = run("show", shown["message_id"])
    assert out.splitlines()[0] == f"message {behind} made pending"
    assert out.splitlines()[1].startswith(f"blocked: by message {head}: parked since ")
    for wrong, why in (("999", "no message 999"), (str(UUID(int=9)), "no message 0"), ("x", "is not a message ID")):
        with pytest.raises(CommandError, match=why):
            run("show", wrong)


def test_a_message_commands_no_terminal() -> None:
    number = write("failed", aggregate="\x1b[2J")
    block(number, "parked")
    change("UPDATE salon_jobs_message SET last_error = E'\\x1b]0;title\\x07'")
    for arguments in (("list",), ("show", str(number)), ("parked",), ("unpark", "--yes", "--aggregate-type", ORDERS)):
        assert "\x1b" not in run(*arguments)[0], arguments


def test_show_hides_secrets_of_payload_and_headers() -> None:
    [(number,)] = seen(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload, headers)"
        ' VALUES (gen_random_uuid(), %s, \'e\', \'{"n": 1, "card": {"cvc": "777"}}\', \'{"X-Token": "t"}\')'
        " RETURNING id",
        ORDERS,
    )
    shown = json.loads(run("show", str(number), "--json")[0])
    assert (shown["payload"], shown["headers"]) == ({"n": 1, "card": {"cvc": "***"}}, {"X-Token": "***"})


def test_retry_and_skip_take_ids_uuids_or_all_failed_ones_that_are_named(stores: list[UUID]) -> None:
    first, second, third = (write("failed", store=store) for store in stores)
    sent = write("published")
    with pytest.raises(CommandError, match=r"Retry 1 message\? No terminal to confirm on; pass --yes"):
        run("retry", str(first))
    [(uuid,)] = seen("SELECT message_id FROM salon_jobs_message WHERE id = %s", first)
    out, _ = run("retry", str(uuid), str(sent), str(first), "--yes")
    assert out.splitlines() == [
        f"{sent}: it is published; only failed and waiting messages can be retried",
        "sent again: 1 of 2",
    ]
    assert json.loads(run("skip", "--store", str(stores[1]), "--yes", "--json")[0]) == [
        {"id": second, "changed": True, "detail": ""}
    ]
    assert statuses() == {first: "pending", second: "skipped", third: "failed", sent: "published"}
    for arguments in ((), ("1", "--event", "made")):
        with pytest.raises(CommandError, match="name the messages by IDs, or the failed ones by"):
            run("retry", *arguments, "--yes")


def test_thousands_report_their_progress() -> None:
    fill(1500, "'failed'", to=ORDERS)
    out, err = run("skip", "--aggregate-type", ORDERS, "--yes")
    assert (out, err) == ("skipped: 1,500 of 1,500\n", "1,000 of 1,500\n1,500 of 1,500\n")


def skip(*ids: int, why: str = "SNS.TOPIC_DENIED 'orders' is in DENY_LIST") -> None:
    change(
        "UPDATE salon_jobs_message SET status = 'skipped', ended_at = now(), last_error = %s WHERE id = ANY (%s)",
        why,
        list(ids),
    )


def test_send_skipped_takes_what_a_list_skipped_or_ids(stores: list[UUID]) -> None:
    first, second, other = write(store=stores[0]), write(store=stores[1]), write(kind="rn::nats:::stock")
    skip(first, other)
    skip(second, why="SNS.EVENT_SKIPPED 'made' is in SKIP_EVENTS")
    own, by_operator, failed = write(), write(), write("failed")
    skip(own, why="SPOOL.CLOSED")
    skip(by_operator, why="SNS.FAILED too often")
    chosen = ("send-skipped", "--aggregate-type", ORDERS)
    question = rf"Send 2 skipped messages \({first} to {second}\)\? No terminal to confirm on; pass --yes"
    with pytest.raises(CommandError, match=question):
        run(*chosen)
    assert "pending" not in statuses().values()
    assert json.loads(run(*chosen, "--store", str(stores[1]), "--yes", "--json")[0]) == [
        {"id": second, "changed": True, "detail": ""}
    ]
    assert run(*chosen, "--yes")[0] == "to be sent: 1 of 1\n"
    assert run(*chosen, "--yes")[0] == "to be sent: 0 of 0\n"
    assert run(*chosen, "--code", "SPOOL.CLOSED", "--yes")[0] == "to be sent: 1 of 1\n"
    assert run("send-skipped", str(by_operator), str(failed), "--yes")[0].splitlines() == [
        f"{failed}: it is failed; only skipped messages can be sent",
        "to be sent: 1 of 2",
    ]
    assert statuses() == {
        first: "pending",
        second: "pending",
        other: "skipped",
        own: "pending",
        by_operator: "pending",
        failed: "failed",
    }
    reset = "SELECT DISTINCT last_error, retry_count, sent_at FROM salon_jobs_message WHERE status = 'pending'"
    assert seen(reset) == [("", 0, None)]
    for arguments in ((), ("1", "--event", "made"), ("--code", "SPOOL.CLOSED"), ("1", "--code", "SPOOL.CLOSED")):
        with pytest.raises(CommandError, match="name the messages by IDs, or those that a list skipped by"):
            run("send-skipped", *arguments, "--yes")


def test_parked_and_unpark() -> None:
    parked, waiting = write("failed", aggregate="1"), write(aggregate="2")
    block(parked, "parked")
    block(waiting, "waiting")
    assert [row["head_id"] for row in json.loads(run("parked", "--json")[0])] == [parked]
    assert [row["head_id"] for row in json.loads(run("parked", "--waiting", "--json")[0])] == [parked, waiting]
    assert run("parked", "--aggregate-type", "rn::nats:::stock")[1] == "no aggregate is parked\n"
    assert run("parked")[0].splitlines()[1].split()[:4] == [ORDERS, "1", "parked", str(parked)]
    with pytest.raises(CommandError, match=r"Retry 2 aggregates\? No terminal"):
        run("unpark", "--aggregate-type", ORDERS)
    out, _ = run("unpark", "--aggregate-type", ORDERS, "--aggregate-id", "1", "--aggregate-id", "9", "--yes")
    assert out.splitlines() == [f"{ORDERS} 9: it is not blocked", "unparked: 1 of 2"]
    assert len(json.loads(run("unpark", "--aggregate-type", ORDERS, "--yes", "--json")[0])) == 2
    assert [row[2] for row in blocked()] == [True, True]


def test_replay_shows_a_dry_run_asks_and_records_who_and_why() -> None:
    first, last = write("published"), write("published")
    chosen = ("--aggregate-type", ORDERS, "--from-id", "1")
    assert run("replay", *chosen, "--dry-run")[0] == f"would be sent again: 2 ({first} to {last})\n"
    with pytest.raises(CommandError, match=rf"Send 2 messages again \({first} to {last}\)\? No terminal"):
        run("replay", *chosen)
    with pytest.raises(CommandError, match=r"JOB.OPTION_INVALID: pass requested_by, and a reason"):
        run("replay", *chosen, "--yes")
    done = json.loads(run("replay", str(last), "--yes", "--by", "kei", "--reason", "lost", "--json")[0])
    assert (done["dry_run"], done["messages"], done["first"]) == (False, 1, last)
    assert seen("SELECT requested_by, reason, messages FROM salon_jobs_replay") == [("kei", "lost", 1)]
    assert run("replay", *chosen, "--status", "failed", "--dry-run")[0] == "would be sent again: 0 (none)\n"


def test_pause_and_resume_a_destination() -> None:
    assert run("pause", ORDERS)[0] == f"paused: {ORDERS}\n"
    assert seen("SELECT aggregate_type, paused FROM salon_jobs_destination") == [(ORDERS, True)]
    pause_destination(ORDERS, by="late")
    assert seen("SELECT paused_by, paused_at <= now() FROM salon_jobs_destination") == [(getpass.getuser(), True)]
    assert json.loads(run("resume", ORDERS, "--json")[0]) == {"resumed": ORDERS}
    assert seen("SELECT aggregate_type, paused FROM salon_jobs_destination") == [(ORDERS, False)]
    assert seen("SELECT paused_by, paused_at FROM salon_jobs_destination") == [("", None)]
    with pytest.raises(CommandError, match=r"OUTBOX.MESSAGE_INVALID: aggregate_type 'orders' is malformed"):
        run("pause", "orders")


def test_gate_names_who_holds_it_and_how_many_wait() -> None:
    write()
    assert run("gate")[0].startswith("no open transaction holds back messages")
    with psycopg.connect(url_for("app")) as web:
        web.execute("SELECT salon_jobs_emit(%s, '1', 'made', '{}')", [ORDERS])
        for _ in range(3):
            write()
        pid = web.info.backend_pid
        state = json.loads(run("gate", "--json")[0])
        out, _ = run("gate")
    [holder] = state["holders"]
    assert (holder["pid"], holder["role"], state["behind"]) == (pid, "app", 3)
    assert holder["since"] is None, "only members of pg_read_all_stats see it"
    assert "committed and waiting behind that: 3" in out


def test_who_may_read_all_statistics_sees_since_when() -> None:
    change("GRANT pg_read_all_stats TO jobs_operator")
    try:
        with psycopg.connect(url_for("app")) as web:
            web.execute("SELECT salon_jobs_emit(%s, '1', 'made', '{}')", [ORDERS])
            [holder] = json.loads(run("gate", "--json")[0])["holders"]
        assert holder["since"] is not None
        assert "salon_jobs_emit" in holder["query"]
        assert holder["state"] == "idle in transaction"
    finally:
        change("REVOKE pg_read_all_stats FROM jobs_operator")
