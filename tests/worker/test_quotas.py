"""How a claim shares its room among claim groups: a plan that needs no database."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salon_jobs.worker import quotas
from salon_jobs.worker.group_scanner import ClaimGroup
from salon_jobs.worker.quotas import plan

ONE, TWO, THREE = (UUID(int=number) for number in (1, 2, 3))


def group(store: UUID, number: int, *, task: str = "t", priority: int = 0) -> ClaimGroup:
    return ClaimGroup(store, number, "default", task, priority, None, due=True)


def by_task(scopes: Sequence[str]) -> list[str]:
    """Count what runs by task alone."""
    return [scope for scope in scopes if scope.startswith("task:")]


def nothing(_: Sequence[str]) -> list[str]:
    return []


def test_stores_share_equally() -> None:
    """However many claim groups each has; what does not divide is rounded up, and the claim stops at its room."""
    groups = [group(ONE, 1), group(ONE, 2), group(TWO, 3), group(THREE, 4)]
    assert [(quota.jobs, quota.store_jobs) for quota in plan(groups, 10, {}, nothing)] == [(4, 4)] * 4


def test_most_urgent_groups_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "GROUPS_PER_CLAIM", 4)
    groups = [group(store, 10 * store.int + n, priority=n) for store in (ONE, TWO) for n in (3, 1, 2)]
    chosen = [(quota.group.store, quota.group.priority) for quota in plan(groups, 8, {}, nothing)]
    assert sorted(chosen) == [(ONE, 1), (ONE, 2), (TWO, 1), (TWO, 2)]
    assert [priority for _, priority in chosen] == [1, 2, 1, 2]


def test_competitors_share_limit() -> None:
    """One of them, at random, takes what does not divide."""
    groups = [group(ONE, 1), group(TWO, 2), group(THREE, 3, task="free")]
    shares = {quota.group.number: quota.jobs for quota in plan(groups, 9, {"task:t": 3, "task:free": 9}, by_task)}
    assert shares in ({1: 2, 2: 1, 3: 3}, {1: 1, 2: 2, 3: 3})


def test_full_scope_gets_no_quota() -> None:
    groups = [group(ONE, 1), group(TWO, 2, task="free")]
    plans = plan(groups, 4, {"task:t": 0, "task:free": 4}, by_task)
    assert [(quota.group.number, quota.jobs) for quota in plans] == [(2, 2)]


GROUPS = st.lists(
    st.builds(group, st.sampled_from([ONE, TWO, THREE]), st.integers(), task=st.sampled_from("ab")),
    max_size=12,
    unique_by=lambda each: each.id,
)


@given(groups=GROUPS, room=st.integers(1, 50), left=st.fixed_dictionaries({"task:a": st.integers(0, 9)}))
def test_plan_keeps_every_limit(groups: list[ClaimGroup], room: int, left: dict[str, int]) -> None:
    """No scope is planned beyond its capacity, which is reserved as it is planned, and no store beyond its share."""
    capacity = {**left, "task:b": 2**31}
    found = plan(groups, room, capacity, by_task)
    planned = {task: sum(quota.jobs for quota in found if quota.group.task == task) for task in "ab"}
    assert planned["a"] <= left["task:a"]
    assert capacity == {"task:a": left["task:a"] - planned["a"], "task:b": 2**31 - planned["b"]}
    assert all(0 < quota.jobs <= quota.store_jobs for quota in found)
    stores = len({each.store for each in groups})
    assert all(quota.store_jobs == -(-room // stores) for quota in found)
