"""Commands whose output is a terminal of their own."""

from __future__ import annotations

import os
import pty
import re
import select
from contextlib import suppress
from typing import Self

from tests.interpreter import start_python
from tests.waiting import LIMIT_S, eventually

COLOUR = re.compile(r"\x1b\[\d+m")


class Terminal:
    """A command whose output is a terminal of its own."""

    def __init__(self, *words: str, settings: str = "project.settings", processes: int = 1) -> None:
        self._ours, theirs = pty.openpty()
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        added = {"DJANGO_SETTINGS_MODULE": settings, "TERM": "xterm", "WORKER_PROCESSES": str(processes)}
        environment = {**inherited, **added}
        self.process = start_python("manage.py", *words, environment=environment, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self._raw = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    @property
    def text(self) -> str:
        """What was read, without its colours; a character may still come in parts."""
        return COLOUR.sub("", self._raw.decode(errors="replace"))

    def wait_for(self, text: str) -> None:
        def look() -> bool:
            if select.select([self._ours], [], [], 0)[0]:
                self._raw += os.read(self._ours, 65536)
            return text in self.text

        eventually(look, what=lambda: self.text)

    def read(self) -> list[str]:
        """Read to the end; return the lines."""
        text = b""
        with suppress(OSError):  # all have closed the terminal
            while part := os.read(self._ours, 65536):
                text += part
        assert self.process.wait(LIMIT_S) == 0
        return text.decode().splitlines()
