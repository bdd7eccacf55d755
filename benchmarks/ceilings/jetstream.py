"""Publishes to JetStream in a loop by the client library alone: pipelined, without order, fencing or a relay."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import nats

_BODY = b'{"order_id": "0c7a2f5e-0000-4000-8000-000000000000", "total": 12800, "items": [1, 2, 3], "note": "none"}'


def publish_bare(url: str, *, stream: str, messages: int, window: int = 256) -> float:
    """Create the stream, publish that many messages to a thousand subjects, and return messages per second."""
    return asyncio.run(_publish(url, stream, messages, window))


async def _publish(url: str, stream: str, messages: int, window: int) -> float:
    client = await nats.connect(url)
    try:
        await client.jetstream().add_stream(name=stream, subjects=[stream, f"{stream}.>"])
        free, arrived = asyncio.Semaphore(window), 0
        all_arrived = asyncio.Event()

        async def acknowledged(answer: Any) -> None:
            nonlocal arrived
            if b'"error"' in answer.data:
                raise RuntimeError(answer.data.decode())
            arrived += 1
            free.release()
            if arrived == messages:
                all_arrived.set()

        inbox = client.new_inbox()
        await client.subscribe(f"{inbox}.*", cb=acknowledged)
        began_s = time.perf_counter()
        for number in range(messages):
            await free.acquire()
            headers = {"Nats-Msg-Id": f"{began_s}-{number}", "Event": "order.created", "Producer": "bench"}
            subject = f"{stream}.{number % 1000}"
            await client.publish(subject, _BODY, reply=f"{inbox}.{number}", headers=headers)
        await all_arrived.wait()
        return messages / (time.perf_counter() - began_s)
    finally:
        await client.close()
