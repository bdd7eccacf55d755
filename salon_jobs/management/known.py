"""Notices names that no task of this release knows, as a slip of the keyboard makes them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from salon_jobs.jobs import registry

_HAS: Final = {"task": "has that name", "queue": "names that queue"}


def unknown_names(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each value of ``--task`` and ``--queue`` that no task has.

    A note and no refusal: jobs of another release, and queues that ``using`` alone names, are operated on as well.
    """
    for kind, names in {"task": registry.task_names(), "queue": registry.queue_names()}.items():
        given: Any = options.get(kind)
        for name in [given] if isinstance(given, str) else given or ():
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                yield f"note: --{kind} {name!r}: no task of this release {_HAS[kind]}{hint}"
