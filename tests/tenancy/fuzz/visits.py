"""Requests, jobs and asyncio tasks, each of which must leave nothing behind: many at once on few connections."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.signals import request_finished, request_started
from django.db import Error, connections, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory, override_settings

from salon_jobs import tenant_context
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import LeaseLost, TenantContextError
from salon_jobs.tenancy import reset_store
from salon_jobs.tenancy.request import TenantMiddleware
from tests import tasks
from tests.support import another_process, claim
from tests.support import run as run_job
from tests.tenancy.asgi import own_thread
from tests.tenancy.fuzz.actor import Actor, Boom, Witness, add_stores
from tests.tenancy.probe import POOLED, pool_alias

KEPT: Final = "web"
WORKER: Final = "default"


class Visitor(Actor):
    """Source of random visits; runs jobs as the process registered for it."""

    def __init__(self, witness: Witness, stores: list[UUID], seed: int, process_id: int) -> None:
        super().__init__(witness, stores, seed)
        self.process_id = process_id

    def visit_until_done(self) -> None:
        while not self.witness.is_done:
            self.visit()

    def visit(self) -> None:
        """Make one visit of a random kind, with what Django does before and after a request."""
        kinds: list[Callable[[str], None]] = [
            *(self.request, self.request, self.request, self.request_outside, self.storeless, self.transactionless),
            *(self.one_after_another, self.by_hand, self.session, self.session, self.served, self.served, self.job),
        ]
        kind = self.random.choice(kinds)
        alias = self.random.choice((POOLED, POOLED, KEPT))
        self.witness.visited(kind.__name__)
        request_started.send(Visitor)
        try:
            kind(alias)
        except (Boom, Error, LeaseLost) as error:  # the error that the job ends with
            self.witness.visited(f"failed with {type(error).__name__}")
        finally:
            request_finished.send(Visitor)
        if self.random.random() < 0.5:
            self.witness.read(alias, None, "the next request, before its store is set")
            request_finished.send(Visitor)

    def request(self, alias: str) -> None:
        """Work in the one transaction of a store's request."""
        store = self.any_store()
        with tenant_context(store, using=alias):
            self.act(alias, store)

    def request_outside(self, alias: str) -> None:
        """Work in several transactions, with statements between them."""
        store = self.any_store()
        with tenant_context(store, using=alias, atomic=False):
            for _ in range(self.random.randint(1, 3)):
                self.witness.read(alias, None, "between transactions")
                with suppress(Boom), transaction.atomic(using=alias):
                    self.act(alias, store)

    def session(self, alias: str) -> None:
        """Work with the store on the session, on whatever connection the alias has at that time."""
        store = self.any_store()
        with tenant_context(store, using=alias, scope="session", atomic=False):
            for _ in range(self.random.randint(1, 3)):
                self.witness.read(alias, store, "a session, outside a transaction")
                with suppress(Boom), transaction.atomic(using=alias):
                    self.act(alias, store)
                if self.random.random() < 0.3:
                    connections[alias].close()
            if self.random.random() < 0.1:
                raise Boom
        self.witness.read(alias, None, "after a session")

    def served(self, _: str) -> None:
        """Send a request through the middleware; the body may be streamed, and the client may disconnect."""
        store = self.any_store()
        response: Any = TenantMiddleware(partial(self._answer, store))(request_of(store))
        if response.streaming:
            for _part in response:
                if self.random.random() < 0.2:
                    break
        response.close()
        self.witness.read(WORKER, None, "after a request through the middleware")

    def _answer(self, store: UUID, _request: HttpRequest) -> HttpResponseBase:
        def parts() -> Iterator[str]:
            for _ in range(3):
                self.witness.read(WORKER, store, "a streamed body")
                yield "part"

        self.act(WORKER, store)
        if self.random.random() < 0.3:
            return StreamingHttpResponse(parts())
        return HttpResponse(status=self.random.choice((200, 500)))

    def storeless(self, alias: str) -> None:
        with transaction.atomic(using=alias):
            self.witness.read(alias, None, "a transaction without a store")
            _rows, touched = self.witness.run(alias, "UPDATE customer SET email = 'x'")
            if touched:
                self.witness.leaks.append(f"changed {touched} rows without a store")
            if self.random.random() < 0.3:
                raise Boom

    def transactionless(self, alias: str) -> None:
        self.witness.read(alias, None, "autocommit")

    def one_after_another(self, alias: str) -> None:
        """Enter one store after another in one transaction, some with an error, and none in between."""
        with transaction.atomic(using=alias):
            for store in self.random.sample(self.stores, 2):
                with suppress(Boom), tenant_context(store, using=alias, atomic=self.random.random() < 0.7):
                    self.witness.read(alias, store, "one of several")
                    if self.random.random() < 0.3:
                        raise Boom
                self.witness.read(alias, None, "between two stores in one transaction")

    def by_hand(self, alias: str) -> None:
        """Begin and end the transaction without Django's knowledge."""
        store = self.any_store()
        self.witness.run(alias, "BEGIN")
        try:
            with tenant_context(store, using=alias, atomic=False):
                self.witness.read(alias, store, "a transaction begun by hand")
            self.witness.read(alias, None, "after the context, in a transaction begun by hand")
        finally:
            self.witness.run(alias, self.random.choice(("COMMIT", "ROLLBACK")))

    def job(self, _: str) -> None:
        """Enqueue some jobs and run what is due, as a worker does."""
        store = self.any_store()
        with suppress(Boom), transaction.atomic(using=WORKER):
            self.random.choice((tasks.in_store, tasks.outside)).enqueue(store_id=store)
            if self.random.random() < 0.3:
                tasks.system.enqueue()
            if self.random.random() < 0.1:
                raise Boom
        for each in claim(self.process_id, 3):
            acting.actor = self
            run_job(each, self.process_id)
        self.witness.read(WORKER, None, "after a job")

    async def visit_async(self) -> None:
        """Make a visit in its own thread, as Django serves an async request; it may be cancelled."""
        self.witness.visited("async")
        async with own_thread():
            await sync_to_async(self.visit)()

    async def visit_alone(self) -> None:
        """Open contexts in a coroutine that has its own thread and connection."""
        self.witness.visited("coroutine alone")
        async with own_thread():
            await self._in_steps(atomic=self.random.random() < 0.5)

    async def visit_sharing(self) -> None:
        """Open contexts in a coroutine that shares its thread and connection with others; some are refused."""
        self.witness.visited("coroutine sharing its thread")
        try:
            await self._in_steps(atomic=self.random.random() < 0.2)
        except TenantContextError:
            self.witness.visited("refused on a shared thread")

    async def visit_served(self) -> None:
        """Send a request to an async view through the middleware, on its own thread and connection."""
        self.witness.visited("coroutine served")
        store = self.any_store()

        async def view(_request: HttpRequest) -> HttpResponseBase:
            for _ in range(self.random.randint(1, 3)):
                await self._look(store, "an async view", WORKER)
                await asyncio.sleep(0)
            return HttpResponse(status=self.random.choice((200, 500)))

        async with own_thread():
            await cast("Awaitable[HttpResponseBase]", TenantMiddleware(view)(request_of(store)))
            await self._look(None, "after an async view", WORKER)

    async def _in_steps(self, *, atomic: bool) -> None:
        store = self.any_store()
        await self._look(None, "before, in steps")
        async with tenant_context(store, using=POOLED, atomic=atomic):
            for _ in range(self.random.randint(1, 3)):
                await self._look(store, "in steps")
                await asyncio.sleep(0)
            if self.random.random() < 0.3:
                other = self.another(store)
                async with tenant_context(other, using=POOLED, switch=True, atomic=self.random.random() < 0.3):
                    await self._look(other, "switched, in steps")
            await self._look(store, "at the end, in steps")
        await self._look(None, "afterwards, in steps")

    async def _look(self, store: UUID | None, where: str, alias: str = POOLED) -> None:
        await sync_to_async(self.witness.read)(alias, store, where)


class ByHeader:
    """Resolver that takes the store from a header and allows it to everybody."""

    def resolve(self, request: HttpRequest) -> Any:
        return store_key().parse(request.headers["Store"])

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        return True


def request_of(store: UUID) -> HttpRequest:
    """Make a request of a store, to a view that the middleware handles."""
    return RequestFactory().get("/reservations/", headers={"Store": str(store)})


class _Acting(threading.local):
    """Visitor that runs jobs on the current thread."""

    actor: Visitor


acting = _Acting()


def in_a_job(store_id: UUID | None) -> None:
    """Run the body of every job."""
    actor = acting.actor
    if store_id is None:
        actor.witness.read(WORKER, None, "a system task")
        return
    with transaction.atomic(using=WORKER):
        actor.act(WORKER, store_id)


# Many concurrent visitors on few connections

STORES = 12
THREADS = 5
TASKS = 4
CONNECTIONS = 3


def run(statements: int, *, seed: int) -> Witness:
    """Run that many statements, or until one is wrong. Needs a migrated database without stores."""
    witness = Witness(statements)
    stores = add_stores(STORES)
    pool = pool_alias(KEPT, max_size=CONNECTIONS, reset=reset_store)
    with pool, _job_bodies_and_resolver():
        visitors = [Visitor(witness, stores, seed + number, another_process()) for number in range(THREADS)]
        works: list[Callable[[], None]] = [visitor.visit_until_done for visitor in visitors]
        works.append(partial(asyncio.run, _visit_in_tasks(witness, stores, random.Random(seed), another_process())))
        threads = [threading.Thread(target=_guarded, args=(witness, work)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return witness


def _guarded(witness: Witness, work: Any) -> None:
    try:
        work()
    except BaseException as error:  # kept, and judged at the end
        witness.surprises.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        connections.close_all()


async def _visit_in_tasks(witness: Witness, stores: list[UUID], chance: random.Random, process_id: int) -> None:
    """Keep some tasks running, and cancel one in four at a random point."""
    running: set[asyncio.Task[None]] = set()
    while not witness.is_done:
        while len(running) < TASKS:
            visitor = Visitor(witness, stores, chance.randrange(2**32), process_id)
            kinds = (visitor.visit_async, visitor.visit_alone, visitor.visit_sharing, visitor.visit_served)
            task = asyncio.create_task(chance.choice(kinds)())
            running.add(task)
            if chance.random() < 0.25:
                asyncio.get_running_loop().call_later(chance.random() / 50, task.cancel)
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        _judge(done)
    if running:
        _judge((await asyncio.wait(running))[0])
    await sync_to_async(connections.close_all)()


def _judge(done: set[asyncio.Task[None]]) -> None:
    for task in done:
        with suppress(asyncio.CancelledError):
            task.result()


@contextmanager
def _job_bodies_and_resolver() -> Generator[None]:
    tasks.hooks.store = lambda store_id, **_: in_a_job(store_id)
    tasks.hooks.system = lambda **_: in_a_job(None)
    found_by = {**settings.SALON_JOBS, "REQUEST_STORE": f"{__name__}.ByHeader"}
    try:
        with override_settings(SALON_JOBS=found_by):
            yield
    finally:
        tasks.hooks.reset()
