"""Conversion between our datetimes, which are aware, and those of projects with ``USE_TZ = False``, which are naive."""

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
    """Loader of instants in UTC, in place of Django's, which cuts off the time zone where ``USE_TZ`` is False."""

    def load(self, data: Buffer) -> datetime:
        """Return an instant in UTC."""
        return super().load(data).astimezone(UTC)


def from_project(given: datetime) -> datetime:
    """Return a datetime that the project passed as an instant; a naive one as it is where ``USE_TZ`` is True."""
    if uses_time_zones() or timezone.is_aware(given):
        return given
    return timezone.make_aware(given, timezone.get_default_timezone())


@overload
def to_project(instant: datetime) -> datetime: ...
@overload
def to_project(instant: None) -> None: ...
def to_project(instant: datetime | None) -> datetime | None:
    """Return an instant as the project's own models return theirs; idempotent."""
    if instant is None or uses_time_zones() or timezone.is_naive(instant):
        return instant
    return timezone.make_naive(instant, timezone.get_default_timezone())


def from_row(read: datetime) -> datetime:
    """Return a naive datetime that Django read as an instant, which pages show in ``TIME_ZONE``.

    Its offset is fixed, so that differences of two are right when clocks change between them. Right also in the hour
    that clocks repeat: ``fold`` tells which of the two it is.
    """
    local = timezone.make_aware(read, timezone.get_default_timezone())
    offset = local.utcoffset()
    assert offset is not None  # noqa: S101 - it is aware
    return local.replace(tzinfo=fixed_timezone(offset, local.tzname() or ""))
