"""Conversion between our aware datetimes and the naive ones of projects with ``USE_TZ = False``."""

from __future__ import annotations

from datetime import UTC, datetime
from datetime import timezone as fixed_timezone
from typing import TYPE_CHECKING, overload

from django.utils import timezone
from psycopg.types.datetime import TimestamptzLoader

from salon_jobs.conf import uses_time_zones

if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview


class UtcLoader(TimestamptzLoader):
    """Loader of instants in UTC. Django's own drops the time zone if ``USE_TZ`` is False."""

    def load(self, data: Buffer) -> datetime:
        """Return an instant in UTC."""
        return super().load(data).astimezone(UTC)


def from_project(given: datetime) -> datetime:
    """Return a project's datetime as an aware one. With ``USE_TZ``, a naive one is returned unchanged."""
    if uses_time_zones() or timezone.is_aware(given):
        return given
    return timezone.make_aware(given, timezone.get_default_timezone())


@overload
def to_project(instant: datetime) -> datetime: ...
@overload
def to_project(instant: None) -> None: ...
def to_project(instant: datetime | None) -> datetime | None:
    """Return an instant as the project's own models would: naive with ``USE_TZ = False``. Idempotent."""
    if instant is None or uses_time_zones() or timezone.is_naive(instant):
        return instant
    return timezone.make_naive(instant, timezone.get_default_timezone())


def from_row(read: datetime) -> datetime:
    """Return the aware datetime, in ``TIME_ZONE``, of a naive one that Django read from a row.

    Its offset is fixed, so that two can be subtracted even if the clocks change between them. ``fold`` makes it right
    in the hour that the clocks repeat, too.
    """
    local = timezone.make_aware(read, timezone.get_default_timezone())
    offset = local.utcoffset()
    assert offset is not None  # noqa: S101 - it is aware
    return local.replace(tzinfo=fixed_timezone(offset, local.tzname() or ""))
