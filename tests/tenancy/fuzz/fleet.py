"""Many concurrent visitors on few connections."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.test import override_settings

from salon_jobs.models import Process
from salon_jobs.tenancy import reset_store
from tests import tasks
from tests.support import change, new_store_id
from tests.tenancy.fuzz.actor import Witness, canary
from tests.tenancy.fuzz.visits import KEPT, ByHeader, Visitor, in_a_job
from tests.tenancy.probe import pool_alias

STORES = 12
THREADS = 5
TASKS = 4
CONNECTIONS = 3


def run(statements: int, *, seed: int, witness: Witness | None = None) -> Witness:
    """Run that many statements, or until one is wrong. Needs a migrated database without stores."""
    witness = witness or Witness(statements)
    stores = [new_store_id() for _ in range(STORES)]
    for store in stores:
        change("INSERT INTO store (id, name) VALUES (%s, 'Salon')", store)
        change(
            "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, %s, '')", uuid4(), store, canary(store)
        )
    pool = pool_alias(KEPT, max_size=CONNECTIONS, timeout=60, reset=reset_store)
    with pool, _job_bodies_and_resolver():
        visitors = [Visitor(witness, stores, seed + number, _register()) for number in range(THREADS)]
        works = [partial(_visit, visitor) for visitor in visitors]
        works.append(partial(asyncio.run, _visit_in_tasks(witness, stores, random.Random(seed), _register())))
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


def _visit(visitor: Visitor) -> None:
    while not visitor.witness.is_done:
        visitor.visit()


def _register() -> int:
    return int(Process.objects.create(kind="worker", hostname="fuzz", pid=1).pk)


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
    found_by = {**settings.SALON_JOBS, "REQUEST_STORE": f"{ByHeader.__module__}.{ByHeader.__qualname__}"}
    try:
        with override_settings(SALON_JOBS=found_by):
            yield
    finally:
        tasks.hooks.reset()
