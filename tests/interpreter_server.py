"""Process that has imported what needs no settings, and forks a child for every program it is asked to run.

``python -m tests.interpreter_server FD``; `tests.interpreter` has the other end of that socket. The server has one
thread and no connection, and configures nothing. A child gets its environment, folder, arguments and streams before it
runs a line of the program, and ends as an interpreter ends.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import selectors
import socket
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from django.apps import apps
from django.conf import settings

from tests.forked_children import fork_children

# What most programs import, and what neither reads settings nor starts threads.
for _name in (
    *("django.contrib.admin.views.main", "django.contrib.auth.checks", "django.contrib.auth.hashers"),
    *("django.contrib.auth.password_validation", "django.contrib.auth.tokens", "django.contrib.auth.validators"),
    *("django.contrib.contenttypes.checks", "django.contrib.staticfiles.checks"),
    *("django.contrib.staticfiles.finders", "django.core.management.commands.makemigrations"),
    *("django.core.management.commands.migrate", "django.db.backends.postgresql.base", "django.template.defaulttags"),
    *("django.template.loader_tags", "django.templatetags.i18n", "django.views.debug", "environ"),
    *("health_check.views", "pgtrigger.migrations", "salon_jobs.brokers.aws.settings"),
    *("salon_jobs.brokers.azure.settings", "salon_jobs.brokers.nats.settings", "salon_jobs.brokers.registry"),
    *("salon_jobs.integrations.sentry", "salon_jobs.jobs.pruning", "salon_jobs.process.exposition"),
    *("salon_jobs.process.health_server", "salon_jobs.process.listener", "salon_jobs.process.logs"),
    *("salon_jobs.process.preflight", "salon_jobs.process.reloader", "salon_jobs.worker.executor"),
    "salon_jobs.worker.finisher",
):
    import_module(_name)


@dataclass(frozen=True, slots=True)
class Program:
    """Words after ``python``, and the surroundings to run them in."""

    words: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    new_session: bool


def serve(control: socket.socket) -> Program | None:
    """Fork until the tests have ended, then return None. In a child, return what to run."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                pid, connection = key.data
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                selector.unregister(key.fd)
                os.close(key.fd)
                with connection, suppress(BrokenPipeError):
                    connection.sendall(str(status).encode())
                continue
            _, descriptors, _, _ = socket.recv_fds(control, 1, 4)
            if not descriptors:
                return None
            connection, *streams = socket.socket(fileno=descriptors[0]), *descriptors[1:]
            with connection.makefile("r", encoding="ascii") as lines:
                program = Program(**json.loads(lines.readline()))
            pid = os.fork()
            if not pid:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                connection.close()
                for other in [*selector.get_map().values()]:
                    if other.data is not None:
                        os.close(other.fd)
                        other.data[1].close()
                selector.close()
                control.close()
                return program
            for stream in streams:
                os.close(stream)
            process = os.pidfd_open(pid)
            socket.send_fds(connection, [str(pid).encode()], [process])
            selector.register(process, selectors.EVENT_READ, (pid, connection))


def run(program: Program) -> None:
    """Run a file, or ``-c CODE``, as an interpreter does that has just started."""
    if program.new_session:
        os.setsid()
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.environment)
    time.tzset()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if os.environ.get("PYTHONUNBUFFERED"):
        for name in ("stdout", "stderr"):
            buffered = getattr(sys, name)
            raw: Any = io.FileIO(buffered.fileno(), "wb", closefd=False)
            raw.name = buffered.name
            stream = io.TextIOWrapper(raw, buffered.encoding, buffered.errors, write_through=True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    elif os.isatty(1):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    fork_children()
    first, *others = program.words
    main = types.ModuleType("__main__")
    if first == "-c":
        source, name, folder, sys.argv = others[0], "<string>", "", ["-c", *others[1:]]
    else:
        path = Path(first).absolute()
        source, name, folder, sys.argv = path.read_text(), str(path), str(path.resolve().parent), [first, *others]
        main.__file__ = name
    sys.orig_argv = [sys.executable, *program.words]
    sys.path[:1] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules["__main__"] = main
    try:
        exec(compile(source, name, "exec"), main.__dict__)
    except Exception as error:
        shown = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        sys.excepthook(type(shown), shown, shown.__traceback__)
        sys.exit(1)


def end(program: Program) -> NoReturn:
    """Run a program and end as an interpreter does, but leave its objects to the kernel: freeing them takes 70 ms."""
    status = 0
    try:
        run(program)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
        status = 1 if isinstance(ended.code, str) else ended.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Refuse to serve what a new process would not have, then serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    if settings.configured or apps.ready or len([*Path("/proc/self/task").iterdir()]) > 1:
        raise RuntimeError("what the server imports must not read settings or start threads")
    gc.collect()
    gc.freeze()
    program = None
    with suppress(KeyboardInterrupt):
        program = serve(control)
    if program is not None:
        end(program)


if __name__ == "__main__":
    main()
