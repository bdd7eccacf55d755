"""Holds the plans by which ordered jobs get their turn, made by the server for empty tables and kept by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plans.explain import rows_read, scans
from tests.plans.test_key_plans import Explained, explained
from tests.support import change, seen

__all__ = ["explained"]  # a fixture

KEYS = 3_000
# The deferred triggers run at the end of each statement, where their plans are seen, and not at the commit.
ADD = (
    "SET CONSTRAINTS ALL IMMEDIATE; SELECT count(*) FROM salon_jobs_add_jobs("
    "'test-ordered', ARRAY['{}'], NULL, '{\"ordered\": \"strict\"}', NULL, ARRAY[%(key)s])"
)
END = "SET CONSTRAINTS ALL IMMEDIATE; DELETE FROM salon_jobs_job WHERE id = %(id)s"
FILL = (
    "SELECT count(*) FROM salon_jobs_add_jobs('test-ordered', ARRAY['{}'], NULL, '{\"ordered\": \"strict\"}', NULL,"
    " (SELECT array_agg(CASE WHEN n %% 2 = 0 THEN 'one' ELSE n::text END) FROM generate_series(1, %s) AS n))"
)


@pytest.fixture
def emptied(explained: Explained) -> Iterator[Explained]:
    """Leave no rows of the keys behind."""
    yield explained
    change("TRUNCATE salon_jobs_ordered_key, salon_jobs_ordered_job")


@pytest.mark.contrib
def test_turn_is_found_by_indexes(emptied: Explained) -> None:
    for _ in range(8):  # five plans of their own, then the one that is kept
        emptied.nodes(f"{ADD}; {ADD}; {END.replace('= %(id)s', '> 0')}", {"key": "one"})
    change(FILL, 2 * KEYS)
    [(turn,)] = seen("SELECT min(id) FROM salon_jobs_job WHERE concurrency_key = 'one'")
    assert seen("SELECT count(*) FROM salon_jobs_ordered_job") == [(KEYS - 1,)]
    for statement in (ADD, END):
        plan = emptied.nodes(statement, {"key": "one", "id": turn})
        for table in ("salon_jobs_job", "salon_jobs_ordered_key", "salon_jobs_ordered_job"):
            nodes = scans(plan, table)
            assert nodes, (statement, table)
            assert "Seq Scan" not in {node["Node Type"] for node in nodes}
            assert [node for node in nodes if rows_read(node) > 3] == [], statement
