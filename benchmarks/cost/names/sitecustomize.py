"""Shows the names of threads to the system; Python runs it as it starts, if its folder is on the path."""

from __future__ import annotations

import sys
import threading
from pathlib import Path


def _show(*_: object) -> None:
    """Write the name of a thread that begins, without what all of ours have in common: the system keeps 15 bytes."""
    sys.setprofile(None)
    name = threading.current_thread().name.removeprefix("salon-jobs-")
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


# It is called for the first event of each thread, before anything that the thread does.
threading.setprofile(_show)
