"""Counts the rows of a list no further than anybody turns pages."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.core import paginator

if TYPE_CHECKING:
    Paginator = paginator.Paginator[Any]
else:
    Paginator = paginator.Paginator  # generic for type checkers alone

_MOST = 10_000


class AtLeast(int):
    """Is a count that was given up there; shown with a plus."""

    def __str__(self) -> str:
        return f"{int(self):,}+"


class BoundedPaginator(Paginator):
    """Offers the first 10,000 rows: counting millions, or skipping them, costs more than the page."""

    @cached_property
    def count(self) -> int:
        """Count up to 10,000 rows; one more is looked for, and only told."""
        rows: Any = self.object_list
        counted: int = rows.order_by()[: _MOST + 1].count()
        return counted if counted <= _MOST else AtLeast(_MOST)
