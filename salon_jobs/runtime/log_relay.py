"""Passes on what children print, whole lines at a time, so that the lines of several processes never mix."""

from __future__ import annotations

import os
import sys

_CHUNK = 1 << 16
_LONGEST = 1 << 20


def relay_lines(source: int) -> None:
    """Copy a pipe to our standard output until its end; a line that its writer's death cut off is ended.

    A log that can not be written, to a reader that is gone say, is dropped: it must not hold the child up.
    """
    rest = b""
    while chunk := os.read(source, _CHUNK):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > _LONGEST:
            whole, newline, rest = whole + newline + rest, b"\n", b""
        if newline:
            _write(whole + newline)
    if rest:
        _write(rest + b"\n")


def _write(lines: bytes) -> None:
    out = getattr(sys.stdout, "buffer", None)
    try:
        if out is None:  # the caller of a command put something else in its place
            sys.stdout.write(lines.decode(errors="replace"))
            return
        # One call on the binary buffer is never divided by another thread's, nor by a line of our own handler.
        out.write(lines)
        out.flush()
    except (OSError, ValueError):
        return
