"""Restart of a service when its code changes, for development."""

from __future__ import annotations

import logging
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.utils import autoreload

from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.core.program import started_in, stop_signals

_POLL_S: Final = 0.2
# How long running jobs may delay a reload. Then a second signal interrupts them; they run again.
_PATIENCE_S: Final = 5.0


class Reloader:
    """Parent process that runs a service as its child, and restarts it when Django's autoreloader sees a change.

    The child is stopped by a signal, like any service, so that it gives its jobs back. A child that failed, such as
    with a syntax error, is restarted at the next change. Main thread only.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        # Signals, and paths of changed files. A SimpleQueue is safe to use at any bytecode.
        self._news: queue.SimpleQueue[int | Path] = queue.SimpleQueue()

    def run(self) -> int:
        """Run until a signal, or until the child ends by itself with status 0; return its status."""
        news = self._news
        for number in stop_signals():
            signal.signal(number, lambda number, _frame: news.put(number))
        self._watch()
        while True:
            # In a session of its own, so that Ctrl-C reaches it once, through us.
            child = subprocess.Popen(self._command, cwd=started_in(), start_new_session=True)
            changed = self._follow(child)
            if changed is None:
                return child.returncode
            log_event(logging.INFO, events.PROCESS_RELOADING, changed=str(changed))

    def _follow(self, child: subprocess.Popen[bytes]) -> Path | None:
        """Wait for the child to end; return the changed file for which to restart it, or None."""
        changed: Path | None = None
        stopping = failed = False
        while True:
            try:
                news = self._news.get(timeout=_POLL_S)
            except queue.Empty:
                news = None
            if isinstance(news, Path):
                if failed:
                    return news
                if changed is None and not stopping:
                    changed = news
                    child.terminate()
                    again = threading.Timer(_PATIENCE_S, child.terminate)
                    again.daemon = True
                    again.start()
            elif news is not None:
                stopping = True
                child.send_signal(news)
            if child.poll() is not None and not failed:
                if stopping or (changed is None and child.returncode == 0):
                    return None
                if changed is not None:
                    return changed
                failed = True
                log_event(logging.ERROR, events.PROCESS_FAILED, status=child.returncode, restart="at the next change")
            if failed and stopping:
                return None

    def _watch(self) -> None:
        """Watch the files of all loaded modules, and of the project's apps, where new modules appear."""
        watcher: Any = autoreload.get_reloader()
        for app in apps.get_app_configs():
            if not {"site-packages", "dist-packages"} & set(Path(app.path).parts):
                watcher.watch_dir(app.path, "**/*.py")
        autoreload.file_changed.connect(self._on_change, weak=False)
        threading.Thread(
            target=watcher.run, args=(threading.main_thread(),), name="salon-jobs-reloader", daemon=True
        ).start()

    def _on_change(self, file_path: Path, **_: Any) -> bool:
        """Restart the child for a Python file; return True, which keeps Django from ending this process."""
        if file_path.suffix == ".py":
            self._news.put(file_path)
        return True
