"""Runs ``manage.py salon_jobs messages`` as operators do."""

from __future__ import annotations

import getpass
import json
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.core.management import CommandError

from salon_jobs.control import pause_destination
from tests.management.operator import run as operate
from tests.outbox.rows import ORDERS, block, blocked, statuses, write
from tests.settings import url_for
from tests.support import change, seen


def run(*arguments: str) -> tuple[str, str]:
    return operate("messages", *arguments)


def shown(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json")[0])


def test_missing_action() -> None:
    with pytest.raises(CommandError, match="Choose an action: list, show, retry, skip, send-skipped, parked, unpark"):
        run()


def test_list_filters_and_limits(stores: list[UUID]) -> None:
    failed, sent = write("failed", aggregate="1", store=stores[0]), write("published", aggregate="2", store=stores[1])
    waiting, stock = write(aggregate="1"), write(kind="rn::nats:::stock")
    change("UPDATE salon_jobs_message SET created_at = now() - interval '3 days' WHERE id = %s", failed)
    for options, expected in (
        ("", [stock, waiting, sent, failed]),
        ("--limit 2", [stock, waiting]),
        ("--status failed", [failed]),
        (f"--aggregate-type {ORDERS} --aggregate-id 1", [waiting, failed]),
        (f"--status pending --aggregate-type {ORDERS} --aggregate-id 1", [waiting]),
        (f"--store {stores[1]}", [sent]),
        ("--event nonsense", []),
        ("--since 1h", [stock, waiting, sent]),
        ("--since 2020-01-01T00:00+09:00", [stock, waiting, sent, failed]),
    ):
        assert [row["id"] for row in shown("list", *options.split())] == expected, options
    assert run("list")[0].splitlines()[0].split()[:3] == ["id", "status", "destination"]
    assert "payload" not in shown("list")[0]
    assert run("list", "--event", "nonsense")[1].splitlines()[0] == "no message matches"
    for wrong in ("yesterday", "2026-01-01T00:00"):
        with pytest.raises(CommandError, match="is not a time; write 12h"):
            run("list", "--since", wrong)


def test_show_hides_secrets_and_says_what_blocks() -> None:
    head, behind = write("failed", aggregate="1"), write(aggregate="1")
    block(head, "parked")
    secret = write(payload='{"n": 1, "card": {"cvc": "777"}}', headers='{"X-Token": "t"}')
    message = shown("show", str(secret))
    assert (message["payload"], message["headers"]) == ({"n": 1, "card": {"cvc": "***"}}, {"X-Token": "***"})
    message = shown("show", str(behind))
    assert message["blocked_by"]["head_id"] == head
    first, second, *_ = run("show", message["message_id"])[0].splitlines()
    assert first == f"message {behind} made pending"
    assert second.startswith(f"delivery: Blocked by message {head}, parked since ")
    for wrong, why in (("999", "no message 999"), (str(UUID(int=9)), "no message 0"), ("x", "is not a message ID")):
        with pytest.raises(CommandError, match=why):
            run("show", wrong)


def test_why_a_pending_message_waits() -> None:
    published, pending = write("published"), write("pending")
    assert "waiting" not in run("list")[0]
    change(
        "INSERT INTO salon_jobs_destination (aggregate_type, paused, paused_by, paused_at, outage_since, outage_code)"
        " VALUES (%s, true, 'ann', '2026-05-06T03:00+00', '2026-05-06T02:00+00', 'BROKER.DOWN')",
        ORDERS,
    )
    why = (
        "destination is paused by ann since 2026-05-06 03:00 UTC"
        " · destination has been down since 2026-05-06 02:00:00 UTC: BROKER.DOWN"
    )
    assert {each["id"]: each["waiting"] for each in shown("list")} == {published: "", pending: why}
    _, first, second = run("list")[0].splitlines()
    assert first.endswith(f"waiting: {why}; x")
    assert second.endswith("  x")
    assert f"delivery: D{why[1:]}\n" in run("show", str(pending))[0]


def test_retry_and_skip_by_ids_or_criteria(stores: list[UUID]) -> None:
    first, second, third = (write("failed", store=store) for store in stores)
    sent = write("published")
    with pytest.raises(CommandError, match=r"Retry 1 message\? No terminal to confirm on; pass --yes"):
        run("retry", str(first))
    [(uuid,)] = seen("SELECT message_id FROM salon_jobs_message WHERE id = %s", first)
    assert run("retry", str(uuid), str(sent), str(first), "--yes")[0].splitlines() == [
        f"{sent}: it is published; only failed and waiting messages can be retried",
        "sent again: 1 of 2",
    ]
    assert shown("skip", "--store", str(stores[1]), "--yes") == [{"id": second, "changed": True, "detail": ""}]
    assert statuses() == {first: "pending", second: "skipped", third: "failed", sent: "published"}
    for arguments in ((), ("1", "--event", "made")):
        with pytest.raises(CommandError, match="name the messages by IDs, or the failed ones by"):
            run("retry", *arguments, "--yes")


def test_send_skipped_by_ids_or_criteria(stores: list[UUID]) -> None:
    denied = "SNS.TOPIC_DENIED 'orders' is in DENY_LIST"
    first = write("skipped", store=stores[0], error=denied)
    second = write("skipped", store=stores[1], error="SNS.EVENT_SKIPPED 'made' is in SKIP_EVENTS")
    other = write("skipped", kind="rn::nats:::stock", error=denied)
    own, by_operator = write("skipped", error="SPOOL.CLOSED"), write("skipped", error="SNS.FAILED too often")
    failed = write("failed")
    chosen = ("send-skipped", "--aggregate-type", ORDERS)
    with pytest.raises(CommandError, match=rf"Send 2 skipped messages \({first} to {second}\)\? No terminal"):
        run(*chosen)
    assert "pending" not in statuses().values()
    done = {"id": second, "changed": True, "detail": ""}
    assert shown(*chosen, "--store", str(stores[1]), "--yes") == [done]
    assert run(*chosen, "--yes")[0] == "to be sent: 1 of 1\n"
    assert run(*chosen, "--yes")[0] == "to be sent: 0 of 0\n"
    assert run(*chosen, "--code", "SPOOL.CLOSED", "--yes")[0] == "to be sent: 1 of 1\n"
    assert run("send-skipped", str(by_operator), str(failed), "--yes")[0].splitlines() == [
        f"{failed}: it is failed; only skipped messages can be sent",
        "to be sent: 1 of 2",
    ]
    sent = dict.fromkeys((first, second, own, by_operator), "pending")
    assert statuses() == {**sent, other: "skipped", failed: "failed"}
    reset = "SELECT DISTINCT last_error, retry_count, sent_at FROM salon_jobs_message WHERE status = 'pending'"
    assert seen(reset) == [("", 0, None)]
    for arguments in ((), ("1", "--event", "made"), ("--code", "SPOOL.CLOSED"), ("1", "--code", "SPOOL.CLOSED")):
        with pytest.raises(CommandError, match="name the messages by IDs, or those that a list skipped by"):
            run("send-skipped", *arguments, "--yes")


def test_parked_and_unpark() -> None:
    parked, waiting = write("failed", aggregate="1"), write(aggregate="2")
    block(parked, "parked")
    block(waiting, "waiting")
    assert [row["head_id"] for row in shown("parked")] == [parked]
    assert [row["head_id"] for row in shown("parked", "--waiting")] == [parked, waiting]
    assert run("parked", "--aggregate-type", "rn::nats:::stock")[1] == "no aggregate is parked\n"
    assert run("parked")[0].splitlines()[1].split()[:4] == [ORDERS, "1", "parked", str(parked)]
    with pytest.raises(CommandError, match=r"Retry 2 aggregates\? No terminal"):
        run("unpark", "--aggregate-type", ORDERS)
    out, _ = run("unpark", "--aggregate-type", ORDERS, "--aggregate-id", "1", "--aggregate-id", "9", "--yes")
    assert out.splitlines() == [f"{ORDERS} 9: it is not blocked", "unparked: 1 of 2"]
    assert len(shown("unpark", "--aggregate-type", ORDERS, "--yes")) == 2
    assert [row[2] for row in blocked()] == [True, True]


def test_replay_asks_and_records_who_and_why() -> None:
    first, last = write("published"), write("published")
    chosen = ("--aggregate-type", ORDERS, "--from-id", "1")
    assert run("replay", *chosen, "--dry-run")[0] == f"would be sent again: 2 ({first} to {last})\n"
    with pytest.raises(CommandError, match=rf"Send 2 messages again \({first} to {last}\)\? No terminal"):
        run("replay", *chosen)
    with pytest.raises(CommandError, match=r"JOB.OPTION_INVALID: pass requested_by, and a reason"):
        run("replay", *chosen, "--yes")
    done = shown("replay", str(last), "--yes", "--by", "kei", "--reason", "lost")
    assert (done["dry_run"], done["messages"], done["first"]) == (False, 1, last)
    assert seen("SELECT requested_by, reason, messages FROM salon_jobs_replay") == [("kei", "lost", 1)]
    assert run("replay", *chosen, "--status", "failed", "--dry-run")[0] == "would be sent again: 0 (none)\n"


def test_pause_and_resume() -> None:
    assert run("pause", ORDERS)[0] == f"paused: {ORDERS}\n"
    pause_destination(ORDERS, by="late")
    state = "SELECT paused, paused_by, paused_at <= now() FROM salon_jobs_destination"
    assert seen(state) == [(True, getpass.getuser(), True)]
    assert shown("resume", ORDERS) == {"resumed": ORDERS}
    assert seen(state) == [(False, "", None)]
    with pytest.raises(CommandError, match=r"OUTBOX.MESSAGE_INVALID: aggregate_type 'orders' is malformed"):
        run("pause", "orders")


def test_gate_names_its_holder() -> None:
    write()
    assert run("gate")[0].startswith("no open transaction holds back messages")
    with psycopg.connect(url_for("app")) as web:
        web.execute("SELECT salon_jobs_emit(%s, '1', 'made', '{}')", [ORDERS])
        for _ in range(3):
            write()
        state = shown("gate")
        assert "committed and waiting behind that: 3" in run("gate")[0]
        [holder] = state["holders"]
        assert (holder["pid"], holder["role"], state["behind"]) == (web.info.backend_pid, "app", 3)
        assert holder["since"] is None, "only members of pg_read_all_stats see it"
        change("GRANT pg_read_all_stats TO jobs_operator")
        try:
            [holder] = shown("gate")["holders"]
        finally:
            change("REVOKE pg_read_all_stats FROM jobs_operator")
        assert holder["since"] is not None
        assert "salon_jobs_emit" in holder["query"]
        assert holder["state"] == "idle in transaction"
