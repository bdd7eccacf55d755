"""Shows that what was sent long ago goes, and nothing that is still to be sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from salon_jobs.outbox.marker import MessagePruner
from tests.support import change, seen


def fill(status: str, age: timedelta, count: int = 1) -> None:
    change(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload, status, created_at, sent_at,"
        " ended_at)"
        " SELECT gen_random_uuid(), 'rn::memory:::orders', 'e', '{}', s, now() - age,"
        " CASE WHEN s = 'published' THEN now() - age END, CASE WHEN s IN ('failed', 'skipped') THEN now() - age END"
        " FROM (SELECT %s AS s, %s AS age) AS given, generate_series(1, %s)",
        status,
        age,
        count,
    )


def left() -> dict[str, int]:
    return dict(seen("SELECT status, count(*) FROM salon_jobs_message GROUP BY 1"))


def test_what_is_past_its_retention_goes_and_nothing_unsent() -> None:
    year = timedelta(days=365)
    for status in ("pending", "failed", "published", "skipped"):
        fill(status, year, 3)
    fill("published", timedelta(days=6, hours=23))
    fill("skipped", timedelta(days=29))
    assert MessagePruner().run_once() == 6
    assert left() == {"pending": 3, "failed": 3, "published": 1, "skipped": 1}


def test_a_walk_goes_past_what_is_never_sent_and_ends_where_messages_are_young() -> None:
    fill("pending", timedelta(days=400), 6_000)
    fill("published", timedelta(days=30), 6_000)
    fill("published", timedelta(0), 12_000)
    now = [0.0]
    pruner = MessagePruner(clock=lambda: now[0])
    assert pruner.run_once() == 6_000
    assert left() == {"pending": 6_000, "published": 12_000}
    change("UPDATE salon_jobs_message SET status = 'published', sent_at = now() - interval '8 days' WHERE id <= 6000")
    assert pruner.run_once() == 0, "the walk goes on where it was"
    now[0] = 3600.0
    assert pruner.run_once() == 6_000, "and from the start every hour"


def test_without_retention_everything_stays(settings: Any) -> None:
    outbox = {**settings.SALON_JOBS["OUTBOX"], "RETAIN_PUBLISHED": None}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OUTBOX": outbox}
    fill("published", timedelta(days=3650))
    fill("skipped", timedelta(days=3650))
    assert MessagePruner().run_once() == 0


def test_skipped_ones_are_kept_at_least_as_long_as_published_ones(settings: Any) -> None:
    outbox = {**settings.SALON_JOBS["OUTBOX"], "RETAIN_PUBLISHED": timedelta(days=32)}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OUTBOX": outbox}
    fill("skipped", timedelta(days=31))
    assert MessagePruner().run_once() == 0


def test_messages_that_were_sent_late_do_not_end_the_walk() -> None:
    fill("published", timedelta(days=8), 12_000)
    change(
        "UPDATE salon_jobs_message SET sent_at = now() WHERE id IN (SELECT min(id) + n FROM salon_jobs_message,"
        " generate_series(0, 5999) n GROUP BY n)"
    )
    assert MessagePruner().run_once() == 6_000
