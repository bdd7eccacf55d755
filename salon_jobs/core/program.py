"""The start of this process: its program and directory, so that it can start others like it."""

from __future__ import annotations

import os
import signal
import sys


def started_in() -> str | None:
    """Return the directory in which the words of ``sys.orig_argv`` name this program, or None if any directory does.

    A ``manage.py`` may have left that directory since; Python kept the full path of the program before.
    """
    path: str = getattr(sys.modules["__main__"], "__file__", None) or ""
    for word in sys.orig_argv[1:]:
        if path.endswith(f"/{word}"):
            return path.removesuffix(word)
        # A module given by -m; if it was found elsewhere, it will be found there again.
        module = word.replace(".", "/")
        for file in (f"{module}.py", f"{module}/__main__.py"):
            if path.endswith(f"/{file}") and sys.path[0] == (folder := path.removesuffix(f"/{file}")):
                return folder
    return None


def replace_closed_streams() -> None:
    """Open the null device in place of each closed standard stream, since a daemon may start a program without them.

    Python then has None in its place, and writing to it fails. And the next file or socket gets its descriptor: the
    database would receive what a library writes to standard error.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest free descriptor: this one, unless something was opened before.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, null == descriptor)
            setattr(sys, name, os.fdopen(null, "w" if descriptor else "r", errors="backslashreplace"))


# The signal of a closed terminal, sent perhaps twice, by the system and by its shell; None where there is none.
HANGUP: int | None = getattr(signal, "SIGHUP", None)


def stop_signals() -> list[int]:
    """Return the signals that ask this process to stop; under ``nohup``, without the end of its terminal."""
    numbers: list[int] = [signal.SIGTERM, signal.SIGINT]
    if HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:
        numbers.append(HANGUP)
    return numbers
