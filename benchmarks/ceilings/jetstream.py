"""Publishes to JetStream in a loop by the client library alone: pipelined, without order, fencing or a relay.

``pipelined`` is the library's own way (``publish_async``, a window of 256); ``raw`` leaves JetStream's part of the
library out: plain publishes with a reply subject, whose answers are only counted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from typing import Any, Final

import nats
from nats.js.errors import NotFoundError

from benchmarks.messages import AGGREGATES
from benchmarks.processes import print_figures

_WINDOW: Final = 256
_BODY: Final = b'{"order": 1234567, "store": "Salon 17", "total": "12800.00", "currency": "JPY"}'


def main(action: str, url: str, stream: str, count: str = "0") -> None:
    """Create the stream anew; then publish so many messages over a thousand subjects and print the rate."""
    print_figures(rate=asyncio.run(_run(action, url, stream, int(count))))


async def _run(action: str, url: str, stream: str, count: int) -> float:
    client: Any = await nats.connect(url)
    try:
        jetstream = client.jetstream(publish_async_max_pending=_WINDOW)
        with suppress(NotFoundError):
            await jetstream.delete_stream(stream)
        await jetstream.add_stream(name=stream, subjects=[stream, f"{stream}.>"])
        if action == "new":
            return 0.0
        publish = _pipelined if action == "pipelined" else _raw
        began = time.perf_counter()
        await publish(client, jetstream, stream, count)
        return count / (time.perf_counter() - began)
    finally:
        await client.close()


async def _pipelined(_client: Any, jetstream: Any, stream: str, count: int) -> None:
    for number in range(count):
        await jetstream.publish_async(f"{stream}.{number % AGGREGATES}", _BODY, headers=_headers(number))
    await jetstream.publish_async_completed()


async def _raw(client: Any, _jetstream: Any, stream: str, count: int) -> None:
    free, all_arrived = asyncio.Semaphore(_WINDOW), asyncio.Event()
    arrived = 0

    async def acknowledged(answer: Any) -> None:
        nonlocal arrived
        if b'"error"' in answer.data:
            raise RuntimeError(answer.data.decode())
        arrived += 1
        free.release()
        if arrived == count:
            all_arrived.set()

    inbox = client.new_inbox()
    await client.subscribe(f"{inbox}.*", cb=acknowledged)
    for number in range(count):
        await free.acquire()
        subject = f"{stream}.{number % AGGREGATES}"
        await client.publish(subject, _BODY, reply=f"{inbox}.{number}", headers=_headers(number))
    await all_arrived.wait()


def _headers(number: int) -> dict[str, str]:
    return {"Nats-Msg-Id": str(number), "Event": "order.created", "Producer": "bench"}


if __name__ == "__main__":
    main(*sys.argv[1:])
