"""Reads single keys from a terminal."""

from __future__ import annotations

import importlib
import os
import select
import time
from types import TracebackType
from typing import Any, TextIO


class Keys:
    """Has a terminal give keys as they are pressed, without showing them, until the block ends. Ctrl-C stays.

    Of what is no terminal no key is ever read, nor on Windows.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before: list[Any] | None = None

    def __enter__(self) -> Keys:
        if os.name == "posix" and self._stream.isatty():
            self._termios: Any = importlib.import_module("termios")  # which Windows lacks
            self._before = self._termios.tcgetattr(self._stream)
            importlib.import_module("tty").setcbreak(self._stream)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            self._termios.tcsetattr(self._stream, self._termios.TCSADRAIN, self._before)

    def pressed(self, key: str, *, within_s: float) -> bool:
        """Wait for this key, so long at most; tell whether it was pressed, or the terminal is gone. Others are lost."""
        end = time.monotonic() + within_s
        while (left := end - time.monotonic()) > 0:
            if self._before is None:
                time.sleep(left)
            elif select.select([self._stream], [], [], left)[0]:
                # Not by the stream, which reads ahead: what it holds already, select does not see.
                read = os.read(self._stream.fileno(), 64)
                if key.encode() in read or not read:
                    return True
        return False
