"""Brokers of the documentation's examples: folders, which can be taken away."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from tests.docs.markdown import blocks, read
from tests.servers.base import Broker


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

    def settings(self) -> dict[str, Any]:
        return {}
