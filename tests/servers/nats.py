"""Real nats-server with JetStream."""

from __future__ import annotations

from typing import Any

from project.local.nats import NatsServer
from salon_jobs.brokers.nats.publisher import NatsPublisher, aggregate_of
from salon_jobs.brokers.nats.source import NatsSource
from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Envelope, Source
from salon_jobs.core import destinations as envelope
from salon_jobs.core.destinations import parse_destination
from tests.servers.base import Broker


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
