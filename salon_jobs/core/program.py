"""How this process was started, so that it can start others like it."""

from __future__ import annotations

import os
import signal
import sys


def started_in() -> str | None:
    """Return the directory in which the words of ``sys.orig_argv`` name this program, or None if any does.

    A ``manage.py`` may have left that directory since; Python kept the full path of the program before.
    """
    path: str = getattr(sys.modules["__main__"], "__file__", None) or ""
    for word in sys.orig_argv[1:]:
        if path.endswith(f"/{word}"):
            return path.removesuffix(word)
        # A module given by -m; one that was found elsewhere is found there again.
        module = word.replace(".", "/")
        for file in (f"{module}.py", f"{module}/__main__.py"):
            if path.endswith(f"/{file}") and sys.path[0] == (folder := path.removesuffix(f"/{file}")):
                return folder
    return None


def replace_closed_streams() -> None:
    """Open the null device in place of each standard stream that is closed, as a program started by a daemon may find.

    Python then has None in its place, which nobody can write to. And the next file or socket gets its descriptor: what
    a library writes to standard error would go to the database.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest descriptor that is free: this one, unless something was opened before.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, null == descriptor)
            setattr(sys, name, os.fdopen(null, "w" if descriptor else "r", errors="backslashreplace"))


#: A terminal that is closed sends this one, perhaps twice, as the system and as its shell; None where there is none.
HANGUP: int | None = getattr(signal, "SIGHUP", None)


def stop_signals() -> list[int]:
    """Return the signals that ask this process to stop; under ``nohup``, the end of its terminal is none."""
    numbers: list[int] = [signal.SIGTERM, signal.SIGINT]
    if HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:
        numbers.append(HANGUP)
    return numbers
