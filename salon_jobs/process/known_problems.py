"""The problems of the whole deployment, as the readiness of each process lists them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from salon_jobs.core import events
from salon_jobs.core.events import log_event

# Probes come every few seconds, to every process, and a verdict takes 20 queries: 19 ms, of which the process computes
# for 8, on an idle deployment.
_READ_EVERY_S: Final = 30.0
# An older verdict is not shown: its queries hang, or nobody has asked for so long.
_VALID_S: Final = 90.0


class KnownProblems:
    """Last verdict that this process has read, and its age.

    ``read`` returns the problems as sentences that everybody may see.
    """

    def __init__(self, read: Callable[[], list[str]], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._began = float("-inf")
        self._known: tuple[dict[str, object], float] = {}, float("-inf")
        self._logged = ""

    def renew(self) -> None:
        """Read the verdict, unless that began less than 30 s ago. From one thread at a time.

        What fails here makes no process unready. It is logged, since readiness shows only the kind of an error: its
        text may name hosts and users.
        """
        if self._clock() - self._began < _READ_EVERY_S:
            return
        began = self._began = self._clock()
        kind = ""
        try:
            found: dict[str, object] = {"problems": self._read()}
        except Exception as error:  # it asks the host for names of stores, too
            kind = type(error).__name__
            found = {"problems_unknown": kind}
            if kind != self._logged:
                log_event(logging.WARNING, events.PROBLEMS_UNKNOWN, exc_info=error)
        self._logged, self._known = kind, (found, began)

    def facts(self) -> dict[str, object]:
        """Return the problems or why they are unknown, and how old that is. Does not wait for ``renew``."""
        found, began = self._known
        age_s = self._clock() - began
        if age_s <= _VALID_S:
            return {**found, "judged_s_ago": round(age_s, 1)}
        return {"problems_unknown": f"last read {age_s:.0f} s ago" if found else "not read yet"}
