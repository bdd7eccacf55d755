"""Declares ``SALON_JOBS["OUTBOX"]``: who emits, and how the relay works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from salon_jobs.sections.reading import count, duration, setting, text, texts


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """Holds what emit and relay need. ``throughput`` is messages a second for each aggregate type; None: no limit.

    ``publishers`` maps a service (the third part of an ``aggregate_type``) to the dotted path of its class, and
    ``sources`` does for ``consume_queue``.
    """

    producer: str | None = setting(None, text(optional=True))
    poll_interval: timedelta = setting(timedelta(seconds=5), duration())
    fetch_limit: int = setting(1000, count(1, 10_000))
    retry_count: int = setting(10, count(1, 1000))
    retry_backoff: timedelta = setting(timedelta(seconds=20), duration())
    throughput: int | None = setting(3000, count(1, 10_000_000, optional=True))
    publishers: Mapping[str, str] = setting(dict[str, str], texts)
    sources: Mapping[str, str] = setting(dict[str, str], texts)
    ownership: timedelta = setting(timedelta(seconds=15), duration())
    retain_published: timedelta | None = setting(timedelta(days=7), duration(optional=True))
    retain_skipped: timedelta | None = setting(timedelta(days=30), duration(optional=True))
    retain_inbox: timedelta | None = setting(timedelta(days=30), duration(optional=True))
