"""Shows that what was sent long ago goes, and nothing that is still to be sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from salon_jobs.outbox.marker import MessagePruner
from tests.outbox.scene import fill, statuses
from tests.support import change


def sent(status: str, age: timedelta, count: int = 1) -> None:
    fill(count, f"'{status}'", created_at=f"now() - interval '{age.total_seconds()} s'")


def test_what_is_past_its_retention_goes_and_nothing_unsent() -> None:
    year = timedelta(days=365)
    for status in ("pending", "failed", "published", "skipped"):
        sent(status, year, 3)
    sent("published", timedelta(days=6, hours=23))
    sent("skipped", timedelta(days=29))
    assert MessagePruner(using="default").run_once() == 6
    assert statuses() == {"pending": 3, "failed": 3, "published": 1, "skipped": 1}


def test_a_walk_goes_past_what_is_never_sent_and_ends_where_messages_are_young() -> None:
    sent("pending", timedelta(days=400), 6_000)
    sent("published", timedelta(days=30), 6_000)
    sent("published", timedelta(0), 12_000)
    now = [0.0]
    pruner = MessagePruner(using="default", clock=lambda: now[0])
    assert pruner.run_once() == 6_000
    assert statuses() == {"pending": 6_000, "published": 12_000}
    change("UPDATE salon_jobs_message SET status = 'published', sent_at = now() - interval '8 days' WHERE id <= 6000")
    assert pruner.run_once() == 0, "the walk goes on where it was"
    now[0] = 3600.0
    assert pruner.run_once() == 6_000, "and from the start every hour"


@pytest.mark.parametrize(
    ("retention", "aged"),
    [(None, {"published": 3650, "skipped": 3650}), (timedelta(days=32), {"skipped": 31})],
    ids=["no retention", "skipped as long as published"],
)
def test_what_the_retention_keeps_stays(
    change_settings: Callable[..., None], retention: timedelta | None, aged: dict[str, int]
) -> None:
    change_settings(OUTBOX={"RETAIN_PUBLISHED": retention})
    for status, days in aged.items():
        sent(status, timedelta(days=days))
    assert MessagePruner(using="default").run_once() == 0


@pytest.mark.slow
def test_messages_that_were_sent_late_do_not_end_the_walk() -> None:
    sent("published", timedelta(days=8), 12_000)
    change("UPDATE salon_jobs_message SET sent_at = now() WHERE id < (SELECT min(id) + 6000 FROM salon_jobs_message)")
    assert MessagePruner(using="default").run_once() == 6_000
