"""Broker for the source of docs/how-to/consume-queue.md: a folder of SQLite files, which can be taken away."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing

from salon_jobs.brokers.publisher import Answers, OutgoingMessage, Publisher, PublishFailure, Verdict
from salon_jobs.brokers.source import Envelope, Source
from salon_jobs.core.destinations import parse_destination
from tests.servers.folder import FolderBroker

_TABLE = "CREATE TABLE message (id INTEGER PRIMARY KEY, fields, payload, deliveries DEFAULT 0, visible_at DEFAULT 0)"


class TableBroker(FolderBroker):
    """Folder of queues, from which the page's source receives."""

    service = "table"
    page = "docs/how-to/consume-queue.md"

    def destination(self, name: str) -> str:
        self._run(name, _TABLE)
        return f"rn::table:::{name}"

    def received(self, destination: str) -> list[Envelope]:
        raise NotImplementedError

    def publisher(self) -> Publisher:
        return TablePublisher(self)

    def source(self, destination: str, *, consumer: str = "test") -> Source:
        source: Source = self._written["TableSource"](parse_destination(destination), consumer=consumer)
        return source

    def spoil(self, destination: str, text: str) -> None:
        self.put(destination, text, "")

    def put(self, destination: str, fields: str, payload: str) -> None:
        statement = "INSERT INTO message (fields, payload) VALUES (?, ?)"
        self._run(parse_destination(destination).resource, statement, fields, payload)

    def _run(self, name: str, statement: str, *values: str) -> None:
        with closing(sqlite3.connect(self._folder / f"{name}.db")) as queue, queue:
            queue.execute(statement, values)


class TablePublisher(Publisher):
    """Stand-in for the other program, which writes into the table."""

    service = "table"

    def __init__(self, broker: TableBroker) -> None:
        self._broker = broker

    def check(self, message: OutgoingMessage) -> None:
        raise NotImplementedError

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        try:
            for message in messages:
                fields = {name.lower().replace("-", "_"): text for name, text in message.fields().items()}
                del fields["envelope"]
                headers = json.loads(message.headers)
                self._broker.put(message.aggregate_type, json.dumps({**fields, "headers": headers}), message.payload)
        except sqlite3.Error as error:
            return [PublishFailure(Verdict.OUTAGE, "TABLE.GONE", str(error))] * len(messages)
        return [None] * len(messages)

    def ping(self) -> None:
        raise NotImplementedError
