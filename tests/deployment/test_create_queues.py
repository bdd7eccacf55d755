"""Runs what creates the stream and the queue of compose.yaml against real brokers, twice."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from azure.storage.queue import QueueServiceClient
from nats.aio.client import Client

from project.local.nats import NatsServer
from tests.servers.azure import AzureBroker

ROOT = Path(__file__).resolve().parents[2]


def test_the_stream_and_the_queue_are_there_afterwards() -> None:
    async def subjects(client: Client) -> object:
        return (await client.jetstream().stream_info("reservations")).config.subjects

    with NatsServer() as nats, closing(AzureBroker()) as azure:
        azure.start()
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "docker/create_queues.py"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env={
                    "PATH": os.environ["PATH"],
                    "NATS_SERVER": nats.url,
                    "AZURE_STORAGE_CONNECTION_STRING": azure.connection_string,
                },
            )
            assert done.returncode == 0, done.stderr
        assert nats.look(subjects) == ["reservations", "reservations.>"]
        with QueueServiceClient.from_connection_string(azure.connection_string) as service:
            assert [queue.name for queue in service.list_queues()] == ["pings"]
