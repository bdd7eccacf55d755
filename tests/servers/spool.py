"""The publisher of docs/how-to/publisher-of-your-own.md: its broker is a folder, which can be taken away."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Envelope, Source
from tests.docs.markdown import blocks, read
from tests.servers.base import Broker

PAGE = "docs/how-to/publisher-of-your-own.md"


class SpoolBroker(Broker):
    service = "spool"
    has_source = False

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="spool-")
        self._folder, self._away = Path(self._home.name, "there"), Path(self._home.name, "away")
        self._away.mkdir()
        [block] = [block for block in blocks(read(PAGE)) if block.action == "write shop/spool.py"]
        self._module = ModuleType("shop.spool")
        exec(compile(block.text, PAGE, "exec"), self._module.__dict__)
        vars(self._module)["FOLDER"] = self._folder

    def start(self) -> None:
        if not self._folder.exists():
            self._away.rename(self._folder)

    def stop(self) -> None:
        if self._folder.exists():
            self._folder.rename(self._away)

    def close(self) -> None:
        self._home.cleanup()

    def settings(self) -> dict[str, Any]:
        return {}

    def destination(self, name: str) -> str:
        (self._folder / name).touch()
        return f"rn::spool:::{name}"

    def received(self, destination: str) -> list[Envelope]:
        lines = (self._folder / destination.rpartition(":")[2]).read_text().splitlines()
        return [_envelope(json.loads(line)) for line in lines]

    def publisher(self) -> Publisher:
        publisher: Publisher = vars(self._module)["SpoolPublisher"]()
        return publisher

    def source(self, destination: str, *, consumer: str = "test") -> Source:
        raise LookupError("nothing receives from a spool")


def _envelope(row: dict[str, Any]) -> Envelope:
    texts = ("message_id", "event", "payload", "producer", "aggregate_type", "aggregate_id", "store_id", "replay_of")
    return Envelope(headers=json.loads(row["headers"]), **{name: row[name] or "" for name in texts})
