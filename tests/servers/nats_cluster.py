"""Three nats-servers that share one JetStream, so that one stream can lose its leader and others keep theirs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from nats.aio.client import Client
from nats.errors import Error
from nats.js.api import Placement

from project.local.ports import free_port
from tests.servers.nats import NatsBroker

_SERVERS: Final = 3
_READY_S: Final = 30.0


class NatsCluster(ExitStack):
    """Cluster of three servers. A stream lives on one of them; killing that server leaves it without a leader."""

    def __init__(self) -> None:
        super().__init__()
        ports = [free_port() for _ in range(_SERVERS)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        self.servers = [
            NatsBroker(
                f'server_name: n{number}\nserver_tags: ["n{number}"]\n'
                f'cluster {{ name: tests, listen: "127.0.0.1:{port}", routes: [{routes}] }}'
            )
            for number, port in enumerate(ports)
        ]

    def start(self) -> None:
        for server in self.servers:
            self.callback(server.close)
            server.start()

    def stream(self, name: str, subjects: Sequence[str], *, on: int) -> None:
        """Create a stream on one server, once the cluster has a leader."""

        async def add(client: Client) -> None:
            until = time.monotonic() + _READY_S
            while True:
                try:
                    await client.jetstream().add_stream(
                        name=name, subjects=list(subjects), placement=Placement(cluster="tests", tags=[f"n{on}"])
                    )
                except Error:
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(0.1)
                else:
                    return

        self.servers[0].look(add)
