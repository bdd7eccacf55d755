"""Open tenant contexts: for which store, on which connection, and whose code may use it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.core.errors import TenantContextError
from salon_jobs.db.connections import StatementGuard, at_transaction_start, can_run_in_transaction, in_transaction
from salon_jobs.tenancy import guc


class ActiveContext(StatementGuard):
    """One open context, and an execution wrapper of its connection: Django's cursors pass every statement through it.

    Asyncio tasks can share a connection and take turns on one thread; the context variable of whoever runs a statement
    determines as which store it runs. ``holds``: the context keeps a transaction or the session, so that until its end
    only the code inside it may use the connection. ``by_statement``: a statement outside a transaction gets its own.
    ``in_session``: the store is on the session, not on each transaction.
    """

    __slots__ = ("by_statement", "connection", "holds", "in_session", "is_open", "store")

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        store: UUID,
        *,
        holds: bool,
        by_statement: bool = False,
        in_session: bool = False,
    ) -> None:
        self.connection, self.store, self.holds = connection, store, holds
        self.by_statement, self.in_session = by_statement, in_session
        self.is_open = False

    def open(self) -> None:
        """Open the context: it becomes the innermost of the surrounding contexts."""
        self.is_open = True
        self.connection.execute_wrappers.append(self)
        _surrounding.set((*_surrounding.get(), self))

    def close(self) -> None:
        """Close the context, also for code that still carries it in a copy of the context variables."""
        self.is_open = False
        if self in self.connection.execute_wrappers:
            self.connection.execute_wrappers.remove(self)
        forget_closed()

    def __enter__(self) -> ActiveContext:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Set the store if the next statement begins a transaction."""
        if not self.in_session and at_transaction_start(self.connection):
            guc.set_local(self.connection, self.store)

    def before_raw_statement(self) -> None:
        """Reject a statement from outside code while this context holds the connection; otherwise set the store."""
        if self.holds and self not in _surrounding.get():
            raise _held(self)
        if innermost(self.connection) is self:
            self.begin()

    def held_inside(self) -> ActiveContext | None:
        """Return a context that holds the connection, was opened after this one, and has not ended."""
        for wrapper in reversed(self.connection.execute_wrappers):
            if wrapper is self:
                return None
            if isinstance(wrapper, ActiveContext) and wrapper.holds:
                return wrapper
        return None

    def __call__(self, execute: Callable[..., Any], statement: Any, params: Any, many: bool, context: Any) -> Any:
        """Run a statement as the store, or pass it on to the context whose code runs it."""
        if self.holds and self not in _surrounding.get():
            raise _held(self)
        if innermost(self.connection) is not self:
            return execute(statement, params, many, context)
        if self.by_statement and _between_transactions(self.connection):
            with transaction.atomic(using=self.connection.alias):
                guc.set_local(self.connection, self.store)
                return execute(statement, params, many, context)
        self.begin()
        result = execute(statement, params, many, context)
        if _rolls_back(statement) and not self.in_session and can_run_in_transaction(self.connection):
            # The savepoint may be older than this context, or than one inside it with another store.
            guc.set_local(self.connection, self.store)
        return result


_surrounding: ContextVar[tuple[ActiveContext, ...]] = ContextVar("salon_jobs_store", default=())
_system_task: ContextVar[str | None] = ContextVar("salon_jobs_system_task", default=None)


def current_store_id() -> UUID | None:
    """Return the store of the surrounding ``tenant_context``; None outside. New threads start without one."""
    return next((block.store for block in reversed(_surrounding.get()) if block.is_open), None)


def surrounding() -> tuple[ActiveContext, ...]:
    """Return the surrounding contexts, innermost last."""
    return _surrounding.get()


def surround_with(blocks: tuple[ActiveContext, ...]) -> None:
    """Adopt, in a coroutine, the contexts opened for it on its thread."""
    _surrounding.set(blocks)


def forget_closed() -> None:
    """Remove closed contexts from the surrounding ones."""
    _surrounding.set(tuple(block for block in _surrounding.get() if block.is_open))


def innermost(connection: BaseDatabaseWrapper) -> ActiveContext | None:
    """Return the innermost surrounding context that is open on this connection."""
    for block in reversed(_surrounding.get()):
        if block.connection is connection and block.is_open:
            return block
    return None


def open_store(connection: BaseDatabaseWrapper) -> UUID | None:
    """Return the store of a context open on the connection, in whichever generator or task; None if there is none."""
    return next((wrapper.store for wrapper in connection.execute_wrappers if isinstance(wrapper, ActiveContext)), None)


def session_context(connection: BaseDatabaseWrapper) -> ActiveContext | None:
    """Return the most recently opened context that puts its store on this connection's session."""
    blocks = (wrapper for wrapper in reversed(connection.execute_wrappers) if isinstance(wrapper, ActiveContext))
    return next((block for block in blocks if block.in_session), None)


def refuse_if_held(connection: BaseDatabaseWrapper) -> None:
    """Raise TenantContextError while a context of other code holds the connection."""
    for wrapper in connection.execute_wrappers:
        if isinstance(wrapper, ActiveContext) and wrapper.holds and wrapper not in _surrounding.get():
            raise _held(wrapper)


def check_nesting(store: UUID, *, switch: bool) -> None:
    """Raise TenantContextError where no context of this store may be opened."""
    if (task := _system_task.get()) is not None:
        raise TenantContextError(
            f"task {task!r} is a system task, which works as no store: enqueue a store_task, or fan_out to all stores"
        )
    outer = current_store_id()
    if outer not in (None, store) and not switch:
        raise TenantContextError(
            f"already inside the context of store {outer}; it cannot become {store} without switch=True"
        )


@contextmanager
def as_system_task(name: str) -> Generator[None]:
    """Run a block as a system task, which cannot open a tenant context."""
    token = _system_task.set(name)
    try:
        yield
    finally:
        _system_task.reset(token)


def _held(block: ActiveContext) -> TenantContextError:
    return TenantContextError(
        f"another context, of store {block.store}, is open on this connection: one that a generator or another task "
        "opened, and that holds its transaction or session. End that first; or let each task have a connection of its "
        "own (asgiref's ThreadSensitiveContext), or hold none (atomic=False)"
    )


def _between_transactions(connection: BaseDatabaseWrapper) -> bool:
    return not connection.in_atomic_block and connection.get_autocommit() and not in_transaction(connection)


def _rolls_back(statement: object) -> bool:
    return isinstance(statement, str) and statement.lstrip()[:8].upper() == "ROLLBACK"
