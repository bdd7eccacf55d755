"""Holds the plans of the relay's statements on 40,000 messages, 16,000 of them parked behind one."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections

from salon_jobs.core.records import PARTITIONS
from salon_jobs.db import statements as sql
from tests.plans.explain import Node, indexes, rows_read, scans
from tests.support import change, plan_nodes, seen

TYPE = "rn::memory:::orders"
ROWS = 40_000
PARKED = 16_000
PLANS = ("force_custom_plan", "force_generic_plan")
PENDING, OPEN = "salon_jobs_message_pending", "salon_jobs_message_open"


def fill(aggregate_id: str, status: str, rows: int) -> None:
    """Insert so many messages, whose columns are SQL of their number n."""
    change(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, aggregate_id, event, payload, status, sent_at)"
        f" SELECT gen_random_uuid(), '{TYPE}', {aggregate_id}, 'e', '{{}}', of_n.status,"
        "         CASE WHEN of_n.status = 'published' THEN now() - n * interval '1 s' END"
        f"  FROM generate_series(1, %s) AS n, LATERAL (SELECT {status} AS status) AS of_n",
        rows,
    )


@contextmanager
def table(state: str, *, analyzed: bool) -> Generator[str]:
    """Fill the table; unless it is analyzed, its statistics are those of an early outage.

    That is a hundred messages of one aggregate, all pending.
    """
    change("TRUNCATE salon_jobs_message, salon_jobs_blocked_aggregate RESTART IDENTITY")
    change("ALTER TABLE salon_jobs_message DISABLE TRIGGER USER")
    fill("'a'", "'pending'", 100)
    change("ANALYZE salon_jobs_message, salon_jobs_blocked_aggregate")
    change("TRUNCATE salon_jobs_message RESTART IDENTITY; ANALYZE salon_jobs_message")
    open_part = "n %% 500 = 0" if state == "mostly published" else "n %% 500 <> 0"
    status = f"CASE WHEN n > {ROWS - PARKED} OR {open_part} THEN 'pending' ELSE 'published' END"
    fill(f"CASE WHEN n > {ROWS - PARKED} THEN 'parked' ELSE 'a' || n %% 5000 END", status, ROWS)
    change("ALTER TABLE salon_jobs_message ENABLE TRIGGER USER")
    change(
        "INSERT INTO salon_jobs_blocked_aggregate (aggregate_type, aggregate_id, partition, head_id, status)"
        " SELECT aggregate_type, aggregate_id, partition, id, 'parked' FROM salon_jobs_message WHERE id = %s",
        ROWS - PARKED + 1,
    )
    change("INSERT INTO salon_jobs_partition (partition, owner) SELECT generate_series(0, %s), 1", PARTITIONS - 1)
    if analyzed:
        change("ANALYZE salon_jobs_message, salon_jobs_blocked_aggregate")
    yield state
    change("TRUNCATE salon_jobs_message, salon_jobs_blocked_aggregate, salon_jobs_partition RESTART IDENTITY")
    change("ANALYZE salon_jobs_message, salon_jobs_blocked_aggregate")


@pytest.fixture(scope="class")
def crowded(request: pytest.FixtureRequest, migrated: None) -> Iterator[str]:
    assert request.cls is not None
    with table(request.cls.state, analyzed=True) as state:
        yield state


def parked_in() -> int:
    [(partition,)] = seen("SELECT partition FROM salon_jobs_blocked_aggregate")
    return int(partition)


def identities(ids: range) -> dict[str, Any]:
    """Return the parameters by which a relay writes about these messages."""
    rows = seen("SELECT id, message_id FROM salon_jobs_message WHERE id = ANY (%s)", list(ids))
    return {"ids": [row[0] for row in rows], "message_ids": [row[1] for row in rows]}


def statements() -> dict[str, dict[str, Any]]:
    """Return what a relay asks, at its worst."""
    everywhere = {"types": [TYPE] * PARTITIONS, "partitions": list(range(PARTITIONS)), "bound": ROWS}
    aggregate = {"aggregate_type": TYPE, "aggregate_id": "parked"}
    passed_over = {"partition": parked_in(), "in_memory": list(range(1, 4001)), "take": 500}
    thousand = identities(range(1, PARKED + 1, PARKED // 1000))
    failed = {"tries": [1] * 1000, "finals": [False] * 1000, "waits": [1.0] * 1000, "errors": ["refused"] * 1000}
    nowhere = {"codes": ["TEST.NOWHERE"] * 1000, "errors": ["nowhere"] * 1000, "wait_s": 0}
    takes = {"afters": [ROWS // 2] * PARTITIONS, "takes": [60] * PARTITIONS, "without": []}
    return {
        "fetch_messages": everywhere | takes,
        "fetch_aggregate": {**aggregate, "after": ROWS - PARKED, "upto": ROWS, "take": 1000},
        "fetch_passed_over": {"aggregate_type": TYPE, "upto": ROWS, **passed_over},
        "message_destinations": {},
        "mark_published": identities(range(1, PARKED + 1, PARKED // 2000)),
        "mark_skipped": {**thousand, "reasons": ["skipped"] * 1000},
        "mark_unpublished": {**thousand, **failed, "owner": 1},
        "oldest_message": {"types": [TYPE], "partitions": PARTITIONS},
        "block_unresolvable": {**thousand, **nowhere, "owner": 1},
        "fetch_heads": {"ids": list(range(1, PARKED + 1, PARKED // 500))},
        "release_ended": {"partitions": list(range(PARTITIONS))},
        "still_pending": {"ids": list(range(1, PARKED + 1, PARKED // 2000))},
        "prune_messages": {"after": PARKED // 2, "published": "1 hour", "skipped": "1 hour"},
    }


def explained(statement: str, parameters: dict[str, Any], *, plan: str) -> list[Node]:
    """Explain a statement as the worker, by a plan of its values or of none; nothing stays."""
    text = sql.load(statement)
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    for number, name in enumerate(names, 1):
        text = text.replace(f"%({name})s", f"${number}")
    values = ", ".join(literal(parameters[name]) for name in names)
    with connections["default"].cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            cursor.execute(f"SET LOCAL jit = off; SET LOCAL plan_cache_mode = {plan}")
            cursor.execute(f"PREPARE asked AS {text.replace('%%', '%')}")
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE asked{f'({values})' if names else ''}")
            plan_found = cursor.fetchone()[0]
        finally:
            cursor.execute("ROLLBACK")
            cursor.execute("DEALLOCATE ALL")
    return plan_nodes(plan_found)


def rows_of(plan: list[Node]) -> int:
    return int(sum(rows_read(node) for node in plan if "Scan" in node["Node Type"] and "Relation Name" in node))


def literal(value: object) -> str:
    if isinstance(value, list):
        return "'{" + ",".join(f'"{each}"' for each in value) + "}'"
    return f"'{value}'"


class TestMostlyPublished:
    """A table of which little is to be sent: a class fills it once, in whatever order its tests come."""

    state = "mostly published"

    @pytest.mark.parametrize("plan", PLANS)
    def test_relay_never_reads_whole_table(self, crowded: str, plan: str) -> None:
        slow: list[str] = []
        for name, parameters in statements().items():
            nodes = explained(name, parameters, plan=plan)
            whole = [n for n in scans(nodes, "salon_jobs_message") if n["Node Type"] == "Seq Scan"]
            slow += [f"{name}: {rows_of(nodes):,} rows"] if whole or rows_of(nodes) > 3 * PARKED else []
        assert slow == []

    def test_next_messages_come_in_index_order(self, crowded: str) -> None:
        asked = statements()
        # The relay sends it with its values. Where nearly all of the table is pending, the key serves as well.
        nodes = explained("fetch_messages", asked["fetch_messages"], plan="force_custom_plan")
        served = indexes(nodes)
        assert served == {PENDING} if crowded == "mostly published" else served <= {PENDING, "salon_jobs_message_pkey"}
        assert rows_of(nodes) < ROWS / 2
        assert "Sort" not in {node["Node Type"] for node in nodes}
        nodes = explained("fetch_aggregate", asked["fetch_aggregate"], plan="force_generic_plan")
        assert indexes(nodes) == {OPEN}
        assert "Sort" not in {node["Node Type"] for node in nodes}

    def test_sent_messages_are_marked_by_primary_key(self, crowded: str) -> None:
        """The index of message ids has its entries anywhere: each would be a page of its own."""
        nodes = explained("mark_published", statements()["mark_published"], plan="force_custom_plan")
        assert {node["Index Name"] for node in nodes if "Index Name" in node} <= {
            "salon_jobs_message_pkey",
            "salon_jobs_blocked_aggregate_head_id_key",
        }
        assert rows_of(nodes) < 3 * 2000


@pytest.mark.parametrize("state", ["mostly published", "mostly pending"])
def test_old_statistics_cost_little(migrated: None, state: str) -> None:
    """By them, the primary key looks as good as the index of what is pending, which may cost it once a partition."""
    with table(state, analyzed=False):
        read = {
            (n, plan): rows_of(explained(n, asked, plan=plan)) for n, asked in statements().items() for plan in PLANS
        }
    assert {at: f"{rows:,}" for at, rows in read.items() if rows > PARTITIONS * ROWS // 2} == {}


class TestMostlyPending(TestMostlyPublished):
    """A table of which nearly all is to be sent."""

    state = "mostly pending"
