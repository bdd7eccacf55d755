"""Broker for the publisher of docs/how-to/publisher-of-your-own.md: a folder, which can be taken away."""

from __future__ import annotations

import json
from typing import Any

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Envelope, Source
from tests.servers.folder import FolderBroker


class SpoolBroker(FolderBroker):
    service = "spool"
    has_source = False
    page = "docs/how-to/publisher-of-your-own.md"

    def destination(self, name: str) -> str:
        (self._folder / name).touch()
        return f"rn::spool:::{name}"

    def received(self, destination: str) -> list[Envelope]:
        lines = (self._folder / destination.rpartition(":")[2]).read_text().splitlines()
        return [_envelope(json.loads(line)) for line in lines]

    def publisher(self) -> Publisher:
        publisher: Publisher = self._written["SpoolPublisher"]()
        return publisher

    def source(self, destination: str, *, consumer: str = "test") -> Source:
        raise LookupError("nothing receives from a spool")


def _envelope(row: dict[str, Any]) -> Envelope:
    texts = ("message_id", "event", "payload", "producer", "aggregate_type", "aggregate_id", "store_id", "replay_of")
    return Envelope(headers=json.loads(row["headers"]), **{name: row[name] or "" for name in texts})
