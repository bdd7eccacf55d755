"""Lists the tables that hold rows of stores, and walks one store's rows of each in bounded steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.db.models import Model, QuerySet

from salon_jobs.models import BlockedAggregate, InboxMessage, Job, JobError, Message

# So many rows are read at a time, those of other stores included where no index names the store.
PAGE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Holding:
    """Names a table, and its columns of JSON that may hold secrets."""

    name: str
    model: type[Model]
    by_index: bool
    secret: tuple[str, ...] = ()


HOLDINGS: Final = (
    Holding("jobs", Job, True, secret=("payload",)),
    Holding("errors", JobError, False),
    Holding("messages", Message, False, secret=("payload", "headers")),
    Holding("blocked_aggregates", BlockedAggregate, True),
    Holding("inbox", InboxMessage, False),
)


def pages(holding: Holding, store_id: UUID, *, using: str) -> Iterator[QuerySet[Any]]:
    """Yield the store's rows page by page, by ascending id. Where no index names the store, every row is looked at.

    Rows that are written meanwhile, behind the last page, are not among them. A page can be empty.
    """
    manager: Any = holding.model._default_manager  # pyright: ignore[reportPrivateUsage]
    rows = manager.using(using).order_by("pk")
    own = rows.filter(store_id=store_id)
    looked_at = own if holding.by_index else rows
    after = 0
    while True:
        ends = list(looked_at.filter(pk__gt=after).values_list("pk", flat=True)[PAGE - 1 : PAGE])
        page = own.filter(pk__gt=after)
        if not ends:
            yield page
            return
        yield page.filter(pk__lte=ends[0])
        after = ends[0]
