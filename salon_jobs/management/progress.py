"""Tells how far a long command is."""

from __future__ import annotations

import time
from typing import Final

from django.core.management.base import OutputWrapper

_EVERY_S: Final = 2.0


class Progress:
    """Writes a line every two seconds."""

    def __init__(self, err: OutputWrapper) -> None:
        self._err = err
        self._told = time.monotonic()

    def tell(self, what: str, count: int) -> None:
        """Say how many of something are done, unless it said so a moment ago."""
        if time.monotonic() - self._told >= _EVERY_S:
            self._told = time.monotonic()
            self._err.write(f"{count:,} {what}")
