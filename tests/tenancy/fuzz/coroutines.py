"""Many jobs with async handlers on few connections, all at once and each as its store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction

from project.salon.models import Customer
from salon_jobs import tenant_context
from salon_jobs.conf import settings as conf
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests import tasks
from tests.support import another_process
from tests.tenancy.fuzz.actor import Actor, Boom, Witness, add_stores

WORKER = "default"
_LEFT = ("SET statement_timeout = '9min'", "SET search_path = nowhere", "SELECT pg_advisory_lock(8)", "LISTEN left")


def run(statements: int, *, seed: int, at_once: int, stores: int, threads: int) -> Witness:
    """Run coroutines of that many statements in all. Needs a migrated database without stores."""
    witness = Witness(statements)
    ids = add_stores(stores)
    chance = random.Random(seed)

    async def handler(store_id: UUID, number: int) -> None:
        if not witness.is_done:
            await Visit(witness, ids, seed + number).visit(store_id)

    tasks.hooks.coroutine = handler
    try:
        number = 0
        while not witness.is_done:
            calls = []
            for _ in range(at_once):
                number += 1
                calls.append(tasks.async_store.call(store_id=chance.choice(ids), number=number))
            tasks.async_store.using(max_attempts=1).enqueue_many(calls)
            options = WorkerOptions(concurrency=threads, async_concurrency=at_once, burst=True)
            if not Worker(another_process(), options, using=WORKER).run():
                witness.surprises.append("the worker did not end in time")
    finally:
        tasks.hooks.reset()
    return witness


class Visit(Actor):
    """One job, which does some things in turn, each at its own time."""

    async def visit(self, store: UUID) -> None:
        kinds: list[Callable[[UUID], object]] = [
            *(self.orm, self.orm, self.streams, self.in_a_transaction, self.in_a_transaction),
            *(self.holds, self.holds_nothing, self.leaves_settings, self.at_once, self.is_cancelled),
        ]
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.choice(kinds)
            self.witness.visited(kind.__name__)
            with suppress(Boom):
                await kind(store)  # type: ignore[misc]
            await asyncio.sleep(self.random.random() / 100)
        if self.random.random() < 0.1:
            raise Boom
        if self.random.random() < 0.05:
            await sync_to_async(lambda: transaction.atomic(using=WORKER).__enter__())()  # it fails for that

    async def look(self, store: UUID, where: str) -> None:
        await sync_to_async(self.witness.read)(WORKER, store, where)

    async def orm(self, store: UUID) -> None:
        self.witness.count()
        rows = [row async for row in Customer.objects.using(WORKER).values_list("store_id", "name")]
        self.witness.judge(rows, store, "the ORM")

    async def streams(self, store: UUID) -> None:
        self.witness.count()
        found = Customer.objects.using(WORKER).values_list("store_id", "name").aiterator(chunk_size=1)
        async for row in found:
            await asyncio.sleep(0)
            self.witness.judge([row], store, "a server-side cursor")
            if self.random.random() < 0.5:
                await self.look(store, "beside a server-side cursor")
            if self.random.random() < 0.3:
                break

    async def in_a_transaction(self, store: UUID) -> None:
        def work() -> None:
            with transaction.atomic(using=WORKER):
                self.act(WORKER, store)

        await sync_to_async(work)()

    async def holds(self, store: UUID) -> None:
        async with tenant_context(store):
            await self.look(store, "holding")
            await asyncio.sleep(self.random.random() / 200)
            await sync_to_async(self.act)(WORKER, store)

    async def holds_nothing(self, store: UUID) -> None:
        other = self.another(store)
        async with tenant_context(other, atomic=False, switch=True):
            await self.look(other, "switched, holding nothing")
            await asyncio.sleep(self.random.random() / 200)
            await self.look(other, "switched, later")
        await self.look(store, "after a switch")

    async def leaves_settings(self, store: UUID) -> None:
        def leave() -> None:
            by_hand = f"SET {conf.store_guc} = '{self.another(store)}'"
            self.witness.run(WORKER, self.random.choice((*_LEFT, by_hand)))

        await sync_to_async(leave)()
        await self.look(store, "after a setting")

    async def at_once(self, store: UUID) -> None:
        await asyncio.gather(*(self.look(store, "gathered") for _ in range(3)))

    async def is_cancelled(self, store: UUID) -> None:
        work = asyncio.create_task(self.in_a_transaction(store))
        await asyncio.sleep(self.random.random() / 500)
        work.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await work
        await self.look(store, "after a cancellation")
