"""Create the stream and the queue that the relay and the consumer of compose.yaml use. Idempotent.

salon_jobs itself creates neither, so that a process that writes messages does not need the right to create queues.
"""

from __future__ import annotations

import asyncio
import os

import nats
from azure.core.exceptions import ResourceExistsError
from azure.storage.queue import QueueClient
from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError

_STREAM = "reservations"
_QUEUE = "parse-tasks"
_DUPLICATES_S = 120
_ALREADY_THERE = 10058


async def create_stream(server: str) -> None:
    """Create the stream for messages about reservations, with an aggregate or without."""
    client = await nats.connect(server, connect_timeout=5)
    try:
        config = StreamConfig(name=_STREAM, subjects=[_STREAM, f"{_STREAM}.>"], duplicate_window=_DUPLICATES_S)
        await client.jetstream().add_stream(config)
    except BadRequestError as error:
        if error.err_code != _ALREADY_THERE:
            raise
    finally:
        await client.close()


def create_queue(connection_string: str) -> None:
    """Create the queue in which uploaded files wait to be parsed."""
    with QueueClient.from_connection_string(connection_string, _QUEUE) as queue:
        try:
            queue.create_queue()
        except ResourceExistsError:
            return


if __name__ == "__main__":
    asyncio.run(create_stream(os.environ["NATS_SERVER"]))
    create_queue(os.environ["AZURE_STORAGE_CONNECTION_STRING"])
