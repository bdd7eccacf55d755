"""The database's clock, by which the ages and the lateness of its rows are told: hosts' clocks differ from it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime

from salon_jobs.db.statements import rows


@dataclass(slots=True)
class _Page:
    using: str
    read: dict[str, datetime] = field(default_factory=dict[str, datetime])


_page: ContextVar[_Page | None] = ContextVar("salon_jobs_page", default=None)


@contextmanager
def one_instant(using: str) -> Generator[None]:
    """Have the block, such as a page, take place at one instant: its ages agree, and a clock is read at most once.

    ``using`` is the alias of ``now()`` in it.
    """
    token = _page.set(_Page(using))
    try:
        yield
    finally:
        _page.reset(token)


def now(using: str | None = None) -> datetime:
    """Return the database's time, in one query unless the block of ``one_instant`` knows it. Role: any.

    Raises LookupError without an alias outside of such a block.
    """
    page = _page.get()
    if using is None:
        if page is None:
            raise LookupError("which database's time? Name an alias, or call it within one_instant()")
        using = page.using
    if page is not None and using in page.read:
        return page.read[using]
    [(at,)] = rows("database_time", using=using)
    return brought(at, using=using)


def brought(at: datetime, *, using: str) -> datetime:
    """Return the time that a statement has read along with its rows, and keep it for the block of ``one_instant``.

    The first one stays.
    """
    page = _page.get()
    return at if page is None else page.read.setdefault(using, at)
