"""Open tenant contexts: the store of each, its connection, and the code that may use that connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context, ContextVar
from typing import Any, ClassVar, Final, Self, TypeVar

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql

from salon_jobs.core.errors import TenantContextError
from salon_jobs.core.records import StoreId
from salon_jobs.db.connections import (
    StatementGuard,
    at_transaction_start,
    can_run_in_transaction,
    in_transaction,
    refuse_lost_transaction,
)
from salon_jobs.db.internals import replace_callbacks
from salon_jobs.tenancy import guc

R = TypeVar("R")


class ActiveContext(StatementGuard):
    """An open context, and an execution wrapper of its connection: Django's cursors pass every statement through it.

    Asyncio tasks can share a connection and take turns on one thread; the context variable of the running code decides
    as which store a statement runs. While ``holds``, only code inside the context may use the connection.

    Modes: with ``atomic`` it holds a transaction or a savepoint; without, the store is set in every transaction that
    the block begins, and with ``by_statement`` a statement between them gets its own. ``SessionContext`` holds the
    session instead, and ``StoreJobContext`` a worker's idle connection.
    """

    __slots__ = ("_exits", "_switch", "atomic", "by_statement", "connection", "holds", "is_open", "store")
    in_session: ClassVar[bool] = False

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        store: StoreId,
        *,
        atomic: bool = True,
        by_statement: bool = False,
        switch: bool = False,
    ) -> None:
        self.connection, self.store, self._switch = connection, store, switch
        self.atomic, self.by_statement = atomic, by_statement and not atomic
        self.holds = True
        self.is_open = False

    def __enter__(self) -> Self:
        self.check_entry()
        connection, outer = self.connection, innermost(self.connection)
        changes = outer is None or outer.store != self.store
        continues_outside = connection.in_atomic_block or not connection.get_autocommit()
        if changes and not self.atomic and not continues_outside and session_context(connection) is not None:
            raise TenantContextError(
                "between transactions the session's store would apply: switch in it with scope='session'"
            )
        with ExitStack() as exits:
            # The transaction (or savepoint) first, then the setting of the store: a rollback then removes the store
            # too, and the end of our savepoint ends those made inside, one of which could bring the store back.
            if self.atomic or (changes and connection.in_atomic_block):
                exits.enter_context(transaction.atomic(using=connection.alias))
                exits.push(self._refuse_to_lose)
            if self.atomic or changes or self.by_statement:
                self.holds = (self.atomic or changes) and (
                    in_transaction(connection) or not connection.get_autocommit()
                )
                self.open()
                exits.callback(self.close)
                if self.holds:
                    exits.callback(self._refuse_open_inside)
                if changes and (continues_outside or not self.atomic):
                    exits.callback(self._restore, outer)
            if connection.in_atomic_block:
                exits.callback(carry_to_callbacks, connection, self.store, since=len(connection.run_on_commit))
            begins = changes and in_transaction(connection)
            if begins or (connection.in_atomic_block and (changes or at_transaction_start(connection))):
                guc.set_local(connection, self.store)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._exits.__exit__(kind, error, traceback)

    def check_entry(self) -> None:
        """Raise TenantContextError if no context of this store may be opened here."""
        if (task := system_task.get()) is not None:
            raise TenantContextError(
                f"task {task!r} is a system task, which has no store: enqueue a store_task, or fan_out to all stores"
            )
        outer = current_store_id()
        if outer not in (None, self.store) and not self._switch:
            raise TenantContextError(
                f"already inside the context of store {outer}; it cannot become {self.store} without switch=True"
            )
        for wrapper in self.connection.execute_wrappers:
            if isinstance(wrapper, ActiveContext):
                wrapper.check_holder()

    @property
    def covers_next_statement(self) -> bool:
        """Whether the next statement of the code inside runs as the store; without ``atomic``, not every one does."""
        return self.in_session or self.by_statement or not is_between_transactions(self.connection)

    def open(self) -> None:
        """Become the innermost surrounding context, and wrap the connection's statements."""
        self.attach(self.connection)
        self.activate()

    def activate(self) -> None:
        """Make this the innermost context of the calling code, even if there is no connection yet."""
        self.is_open = True
        _surrounding.set((*_surrounding.get(), self))

    def attach(self, connection: BaseDatabaseWrapper) -> None:
        """Wrap the statements of a connection of the same alias, which may be another one than before."""
        self.connection = connection
        connection.execute_wrappers.append(self)

    def close(self) -> None:
        """Close the context, also for code that still carries it in a copy of the context variables."""
        self.is_open = False
        with suppress(ValueError):  # detached, perhaps at this moment, by another thread
            self.connection.execute_wrappers.remove(self)
        forget_closed()

    def check_holder(self) -> None:
        """Raise TenantContextError in code outside this context while it holds the connection."""
        if self.holds and self not in _surrounding.get():
            raise TenantContextError(
                f"another context, of store {self.store}, is open on this connection: one that a generator or another "
                "task opened, and that holds its transaction or session. End that first; or let each task have a "
                "connection of its own (asgiref's ThreadSensitiveContext), or hold none (atomic=False)"
            )

    def before_raw_statement(self) -> None:
        """Reject a statement from outside code while this context holds the connection; otherwise set the store."""
        self.check_holder()
        if innermost(self.connection) is self:
            self._begin()

    def __call__(self, execute: Callable[..., Any], statement: Any, params: Any, many: bool, context: Any) -> Any:
        """Run a statement as the store, or pass it on to the context of the running code."""
        self.check_holder()
        if innermost(self.connection) is not self:
            return execute(statement, params, many, context)
        if self.by_statement and is_between_transactions(self.connection):
            with transaction.atomic(using=self.connection.alias):
                guc.set_local(self.connection, self.store)
                return execute(statement, params, many, context)
        self._begin()
        result = execute(statement, params, many, context)
        if _rolls_back(statement) and not self.in_session and can_run_in_transaction(self.connection):
            # The savepoint may be older than this context, or than one inside it with another store.
            guc.set_local(self.connection, self.store)
        return result

    def _begin(self) -> None:
        """Set the store if the next statement begins a transaction."""
        if not self.in_session and at_transaction_start(self.connection):
            guc.set_local(self.connection, self.store)

    def _refuse_to_lose(self, kind: Any, *_: object) -> None:
        """Raise TransactionBroken if the block seems to have ended well, but its work would not be committed."""
        if kind is None:
            refuse_lost_transaction(self.connection)

    def _restore(self, outer: ActiveContext | None) -> None:
        """Restore the outer store, or none, in a transaction that continues outside.

        RELEASE SAVEPOINT keeps a local setting, so this is explicit. ROLLBACK TO restores the old value by itself, and
        in a broken transaction nothing can run before it. If our block holds no transaction and another task has begun
        one in the meantime, that transaction keeps the task's store.
        """
        if self._holder_inside() is None and can_run_in_transaction(self.connection):
            guc.set_local(self.connection, None if outer is None else outer.store)

    def _refuse_open_inside(self) -> None:
        """Refuse to end before a context opened inside: Django would take our savepoint or COMMIT for that one's."""
        if (inner := self._holder_inside()) is not None:
            self.connection.close()
            raise TenantContextError(
                f"a context of store {inner.store}, opened inside by another task or generator, is still open: "
                "everything is rolled back; wait for it before the outer one ends"
            )

    def _holder_inside(self) -> ActiveContext | None:
        """Return a context that holds the connection, was opened after this one, and has not ended."""
        for wrapper in reversed(self.connection.execute_wrappers):
            if wrapper is self:
                return None
            if isinstance(wrapper, ActiveContext) and wrapper.holds:
                return wrapper
        return None


_surrounding: ContextVar[tuple[ActiveContext, ...]] = ContextVar("salon_jobs_store", default=())
# The name of the running system task, which cannot open a tenant context.
system_task: Final[ContextVar[str | None]] = ContextVar("salon_jobs_system_task", default=None)


def current_store_id() -> StoreId | None:
    """Return the store of the surrounding ``tenant_context``; None outside. New threads start without one."""
    return next((context.store for context in reversed(_surrounding.get()) if context.is_open), None)


def surrounding() -> tuple[ActiveContext, ...]:
    """Return the surrounding contexts, innermost last."""
    return _surrounding.get()


def surround_with(contexts: tuple[ActiveContext, ...]) -> None:
    """Adopt, in a coroutine, the contexts opened for it on its thread."""
    _surrounding.set(contexts)


@contextmanager
def as_system_task(name: str) -> Generator[None]:
    """Run the block as a system task, which cannot open a tenant context."""
    token = system_task.set(name)
    try:
        yield
    finally:
        system_task.reset(token)


def detach_contexts(connection: BaseDatabaseWrapper) -> list[ActiveContext]:
    """Remove the open contexts from a connection that none of them holds, for ``attach`` to another one."""
    contexts = [wrapper for wrapper in connection.execute_wrappers if isinstance(wrapper, ActiveContext)]
    for context in contexts:
        with suppress(ValueError):  # another thread closed it at this moment
            connection.execute_wrappers.remove(context)
    return contexts


def forget_closed() -> None:
    """Remove closed contexts from the surrounding ones."""
    _surrounding.set(tuple(context for context in _surrounding.get() if context.is_open))


expects_no_rows: Final[ContextVar[bool]] = ContextVar("salon_jobs_expects_no_rows", default=False)


@contextmanager
def expect_no_rows() -> Generator[None]:
    """Inside, statements on stores' tables may run without a store, and see no rows, where ``STRICT`` refuses them."""
    token = expects_no_rows.set(True)
    try:
        yield
    finally:
        expects_no_rows.reset(token)


def innermost(connection: BaseDatabaseWrapper) -> ActiveContext | None:
    """Return the innermost surrounding context that is open on this connection."""
    for context in reversed(_surrounding.get()):
        if context.connection is connection and context.is_open:
            return context
    return None


def has_current_store(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the current store is this connection's, and not that of another alias or thread; or there is none.

    Where it is not, a function of the database that asks for the current store finds none, or another.
    """
    context = innermost(connection)
    return current_store_id() == (None if context is None else context.store)


def open_store(connection: BaseDatabaseWrapper) -> StoreId | None:
    """Return the store of a context open on the connection, in any generator or task; None if there is none."""
    if not connection.execute_wrappers:  # as after most jobs; a generator would take longer than the rest
        return None
    return next((wrapper.store for wrapper in connection.execute_wrappers if isinstance(wrapper, ActiveContext)), None)


def session_context(connection: BaseDatabaseWrapper) -> ActiveContext | None:
    """Return the most recently opened context that puts its store on this connection's session."""
    wrappers = reversed(connection.execute_wrappers)
    return next((wrapper for wrapper in wrappers if isinstance(wrapper, ActiveContext) and wrapper.in_session), None)


def call_outside(function: Callable[[], R]) -> R:
    """Call a function outside every context, on the same connections; the code of the contexts waits for it.

    For jobs that a test runs. Context variables, such as the language, are as in a new thread. Afterwards the store is
    set again.
    """
    with outside():
        return Context().run(function)


@contextmanager
def outside() -> Generator[None]:
    """Run the block outside every store's context, on the same connections. Afterwards the store is set again."""
    surrounds = _surrounding.get()
    with ExitStack() as exits:
        for connection in connections.all(initialized_only=True):
            context = innermost(connection)
            if context is None:
                continue
            wrappers, is_in_session = [*connection.execute_wrappers], session_context(connection) is not None
            connection.execute_wrappers[:] = [each for each in wrappers if each not in surrounds]
            exits.callback(_set_again, connection, context, wrappers)
            if in_transaction(connection):
                guc.set_local(connection, None)
            elif is_in_session:
                guc.set_session(connection, None)
        exits.callback(_surrounding.reset, _surrounding.set(()))
        yield


def _set_again(connection: BaseDatabaseWrapper, context: ActiveContext, wrappers: list[Any]) -> None:
    connection.execute_wrappers[:] = wrappers
    if can_run_in_transaction(connection):
        guc.set_local(connection, context.store)
    elif not in_transaction(connection) and (session := session_context(connection)) is not None:
        guc.set_session(connection, session.store)


def carry_to_callbacks(connection: BaseDatabaseWrapper, store: StoreId, *, since: int = 0) -> None:
    """Make ``on_commit`` callbacks from number ``since`` on run as the store, unless they have one or need none."""

    def in_store(function: Any) -> Any:
        return function if hasattr(function, "storeless") else _InStore(connection.alias, function, store)

    replace_callbacks(connection, in_store, since=since)


class _InStore:
    """Callback that runs in the context of the store in which it was registered."""

    # An outer context has nothing to add.
    storeless = True

    def __init__(self, alias: str, function: Callable[[], object], store: StoreId) -> None:
        self._alias, self._function, self._store = alias, function, store
        # Django uses it to name a robust callback that fails.
        self.__qualname__ = getattr(function, "__qualname__", repr(function))

    def __call__(self) -> None:
        """Run the callback in its own transaction as the store, after the commit of any block."""
        with ActiveContext(connections[self._alias], self._store, switch=True):
            self._function()


def is_between_transactions(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the next statement is a transaction by itself."""
    return not connection.in_atomic_block and connection.get_autocommit() and not in_transaction(connection)


# Behind comments too, such as those that name the request.
_ROLLBACK: Final = re.compile(r"(?:[\s;]|--[^\n]*|/\*.*?\*/)*+ROLLBACK", re.IGNORECASE | re.DOTALL)


def _rolls_back(statement: object) -> bool:
    return _ROLLBACK.match(_text_of(statement)) is not None


def _text_of(statement: object) -> str:
    """Return a statement without the values in it, which only its connection may know how to write."""
    match statement:
        case sql.Composed():
            return "".join(map(_text_of, statement))
        case sql.SQL():
            return statement.as_string()
        case bytes():
            return statement.decode(errors="replace")
        case _:
            return statement if isinstance(statement, str) else ""
