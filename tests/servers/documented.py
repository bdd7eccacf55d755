"""Brokers of the documentation's examples: folders, which can be taken away."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from salon_jobs.brokers.publisher import Answers, OutgoingMessage, Publisher, PublishFailure, Verdict
from salon_jobs.brokers.source import Envelope, Source
from salon_jobs.core.destinations import parse_destination
from tests.docs.markdown import blocks, read
from tests.servers.base import Broker, envelope_of


class FolderBroker(Broker):
    """Folder used by the module that a page writes as ``shop/<service>.py``."""

    page: ClassVar[str]

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix=f"{self.service}-")
        self._folder, self._away = Path(self._home.name, "there"), Path(self._home.name, "away")
        self._away.mkdir()
        [block] = [block for block in blocks(read(self.page)) if block.action == f"write shop/{self.service}.py"]
        module = ModuleType(f"shop.{self.service}")
        exec(compile(block.text, self.page, "exec"), module.__dict__)
        self._written: dict[str, Any] = vars(module)
        self._written["FOLDER"] = self._folder

    def start(self) -> None:
        if not self._folder.exists():
            self._away.rename(self._folder)

    def stop(self) -> None:
        if self._folder.exists():
            self._folder.rename(self._away)

    def close(self) -> None:
        self._home.cleanup()


class SpoolBroker(FolderBroker):
    service = "spool"
    has_source = False
    page = "docs/how-to/publisher-of-your-own.md"

    def destination(self, name: str) -> str:
        (self._folder / name).touch()
        return f"rn::spool:::{name}"

    def received(self, destination: str) -> list[Envelope]:
        lines = (self._folder / destination.rpartition(":")[2]).read_text().splitlines()
        return [envelope_of(json.loads(line)) for line in lines]

    def publisher(self) -> Publisher:
        publisher: Publisher = self._written["SpoolPublisher"]()
        return publisher


class TableBroker(FolderBroker):
    """Folder of SQLite files, from which the page's source receives."""

    service = "table"
    page = "docs/how-to/consume-queue.md"

    def destination(self, name: str) -> str:
        fields = "fields, payload, deliveries DEFAULT 0, visible_at DEFAULT 0"
        self._run(name, f"CREATE TABLE message (id INTEGER PRIMARY KEY, {fields})")
        return f"rn::table:::{name}"

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
                fields = asdict(envelope_of(message._asdict()))
                payload = fields.pop("payload")
                self._broker.put(message.aggregate_type, json.dumps(fields), payload)
        except sqlite3.Error as error:
            return [PublishFailure(Verdict.OUTAGE, "TABLE.GONE", str(error))] * len(messages)
        return [None] * len(messages)

    def ping(self) -> None:
        raise NotImplementedError
