"""Real nats-servers with JetStream: one, or three that share streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error
from nats.js.api import Placement

from project.local.nats import NatsServer
from project.local.ports import free_port
from salon_jobs.brokers.nats.jetstream import NatsPublisher
from salon_jobs.brokers.nats.protocol import aggregate_of
from salon_jobs.brokers.nats.source import NatsSource
from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Envelope, Source
from salon_jobs.core import destinations as envelope
from salon_jobs.core.destinations import parse_destination
from tests.servers.base import Broker
from tests.waiting import LIMIT_S


class NatsBroker(NatsServer, Broker):
    """One nats-server, which keeps its port across restarts. ``configuration`` is text for its file."""

    service = "nats"
    drops_duplicates = True

    def settings(self) -> dict[str, Any]:
        return {"NATS": {"SERVER": self.url, "TIMEOUT": 3, "RECONNECT_WAIT": 0.05, "RECONNECT_JITTER": 0}}

    def destination(self, name: str) -> str:
        self.stream(name)
        return f"rn::nats:::{name}"

    def received(self, destination: str) -> list[Envelope]:
        """Read the stream from its beginning, by sequence number."""
        return [_envelope(subject, headers, data) for subject, headers, data in self.stored(destination)]

    def stored(self, destination: str) -> list[tuple[str, dict[str, str], str]]:
        """Return subject, headers and body of everything in the stream, in its order."""
        return self.messages(parse_destination(destination).resource.replace(".", "-"))

    def publisher(self) -> Publisher:
        return NatsPublisher()

    def source(self, destination: str, *, consumer: str = "test") -> Source:
        return NatsSource(parse_destination(destination), consumer=consumer)

    def spoil(self, destination: str, text: str) -> None:
        subject = parse_destination(destination).resource
        self.look(lambda client: client.jetstream().publish(subject, text.encode()))


def _envelope(subject: str, headers: dict[str, str], data: str) -> Envelope:
    named = {name.lower(): value for name, value in headers.items()}
    own = {
        name: value
        for name, value in headers.items()
        if name.lower() not in envelope.RESERVED and not name.lower().startswith("nats-")
    }
    aggregate_type = named.get(envelope.AGGREGATE_TYPE.lower(), "")
    return Envelope(
        message_id=named["nats-msg-id"],
        event=named[envelope.EVENT.lower()],
        payload=data,
        producer=named.get(envelope.PRODUCER.lower(), ""),
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_of(parse_destination(aggregate_type).resource, subject),
        store_id=named.get(envelope.STORE_ID.lower(), ""),
        replay_of=named.get(envelope.REPLAY_OF.lower(), ""),
        headers=own,
    )


_SERVERS: Final = 3


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
        placement = Placement(cluster="tests", tags=[f"n{on}"])

        async def add(client: Client) -> None:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    try:
                        await client.jetstream().add_stream(name=name, subjects=list(subjects), placement=placement)
                    except Error:
                        await asyncio.sleep(0.1)
                    else:
                        return

        self.servers[0].look(add)
