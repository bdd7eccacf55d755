"""Runs what creates the stream and the queue of compose.yaml against real brokers, twice."""

from __future__ import annotations

import sys
from contextlib import closing

from azure.storage.queue import QueueServiceClient
from nats.aio.client import Client

from project.local.nats import NatsServer
from tests.interpreter import run_command
from tests.servers.azure import AzureBroker


def test_stream_and_queue_are_created() -> None:
    async def subjects(client: Client) -> object:
        return (await client.jetstream().stream_info("reservations")).config.subjects

    with NatsServer() as nats, closing(AzureBroker()) as azure:
        azure.start()
        environment = {"NATS_SERVER": nats.url, "AZURE_STORAGE_CONNECTION_STRING": azure.connection_string}
        for _ in range(2):
            done = run_command(sys.executable, "docker/create_queues.py", environment=environment)
            assert done.returncode == 0, done.stderr
        assert nats.look(subjects) == ["reservations", "reservations.>"]
        with QueueServiceClient.from_connection_string(azure.connection_string) as service:
            assert [queue.name for queue in service.list_queues()] == ["parse-tasks"]
