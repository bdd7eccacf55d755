"""Keeps the store of a request open where no ``with`` block can: around a view, and around the parts of a body."""

from __future__ import annotations

from types import TracebackType
from uuid import UUID

from salon_jobs.tenancy.context import tenant_context


class StoreScope:
    """Is one ``tenant_context`` from its opening to its close, both in the same thread, or both from coroutines."""

    def __init__(self, store: UUID, *, atomic: bool) -> None:
        self.store, self.atomic = store, atomic
        self.is_open = False
        self._context = tenant_context(store, atomic=atomic)

    def again(self) -> StoreScope:
        """Return another one, of the same store and kind."""
        return StoreScope(self.store, atomic=self.atomic)

    def open(self) -> None:
        """Enter the context."""
        self._context.__enter__()
        self.is_open = True

    def close(self, *, undo: bool) -> None:
        """Leave the context, committing or, with ``undo``, rolling back its transaction. Again: do nothing."""
        self.is_open = False
        self._context.__exit__(*_end(undo))

    async def aopen(self) -> None:
        """Enter the context from a coroutine."""
        await self._context.__aenter__()
        self.is_open = True

    async def aclose(self, *, undo: bool) -> None:
        """Leave the context from a coroutine."""
        self.is_open = False
        await self._context.__aexit__(*_end(undo))


class _Undone(Exception):
    """Rolls back what a request did; it goes no further than to the context."""


def _end(undo: bool) -> tuple[type[BaseException] | None, BaseException | None, TracebackType | None]:
    return (_Undone, _Undone(), None) if undo else (None, None, None)
