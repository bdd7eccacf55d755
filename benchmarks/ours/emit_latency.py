"""Emits one message after the other while a relay idles, and times each from before its commit to the broker.

A plain subscriber of the same server gets a message when the server has it. Both clocks are this process's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Final

import nats
from django.db import transaction

from benchmarks.messages import STREAM, TO_STREAM
from benchmarks.processes import ProcessFailed, print_figures
from benchmarks.watch import percentile
from salon_jobs import emit

_EVERY_S: Final = 0.025
_WARM_UP: Final = 20
_PATIENCE_S: Final = 30.0


def main(url: str, count: str) -> None:
    """Emit so many messages and print the percentiles, in milliseconds."""
    number = int(count) + _WARM_UP
    arrived: dict[int, float] = {}
    listening, done = threading.Event(), threading.Event()

    async def listen() -> None:
        client = await nats.connect(url)

        async def got(message: Any) -> None:
            arrived[int(message.data)] = time.perf_counter()
            if len(arrived) == number:
                done.set()

        await client.subscribe(f"{STREAM}.>", cb=got)
        await client.flush()
        listening.set()
        while not done.is_set():
            await asyncio.sleep(0.05)
        await client.close()

    thread = threading.Thread(target=asyncio.run, args=(listen(),), daemon=True)
    thread.start()
    if not listening.wait(_PATIENCE_S):
        raise ProcessFailed("the subscriber could not connect")
    emitted: dict[int, float] = {}
    for n in range(number):
        with transaction.atomic():
            emit(TO_STREAM, aggregate_id=str(n % 100), event="order.created", payload=n)
            emitted[n] = time.perf_counter()
        time.sleep(_EVERY_S)
    if not done.wait(_PATIENCE_S):
        raise ProcessFailed(f"{len(arrived)} of {number} messages arrived within {_PATIENCE_S:.0f} s")
    waits = [(arrived[n] - emitted[n]) * 1000 for n in range(_WARM_UP, number)]
    print_figures(p50=percentile(waits, 0.5), p99=percentile(waits, 0.99))
