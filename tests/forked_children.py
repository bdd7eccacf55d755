"""Children of a supervisor as copies of a process that has imported all, which saves each the second of an interpreter.

Before a supervisor has a thread or a connection it forks a template, and each child is a clone of that, with the
supervisor as its parent, as a child of its own would be. The process's environment may ask for new interpreters:
``NEW_INTERPRETERS=1``.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, Final

from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand
from django.db import connections

_CLONE: Final = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine) if sys.platform == "linux" else None
# The parent of the clone is that of its template; the kernel writes the ID of its thread to where the C library has it.
_FLAGS: Final = 0x00008000 | 0x01000000 | 0x00200000 | signal.SIGCHLD  # PARENT, CHILD_SETTID, CHILD_CLEARTID
_PR_GET_TID_ADDRESS: Final = 40
_MOST_BYTES: Final = 1 << 16
_MOST_DESCRIPTORS: Final = 16
_OUT_OF_THE_WAY: Final = 200

_fetch_command = ManagementUtility.fetch_command


def fork_children() -> None:
    """Have this process fork a template when it runs a supervisor."""
    if _CLONE is not None:
        management: Any = ManagementUtility
        management.fetch_command = _fetch


def _fetch(utility: ManagementUtility, subcommand: str) -> BaseCommand:
    command = _fetch_command(utility, subcommand)
    if subcommand == "runworker" and _can_be_copied() and (words := _fork_template()):
        utility.argv = words
        return _fetch_command(utility, subcommand)
    return command


def _can_be_copied() -> bool:
    is_connected = any(each.connection is not None for each in connections.all(initialized_only=True))
    is_supervisor = {"--child", "--help"}.isdisjoint(sys.argv)
    is_plain = is_supervisor and threading.active_count() == 1 and not is_connected
    return is_plain and "NEW_INTERPRETERS" not in os.environ and bool(_place_of_thread_id())


def _fork_template() -> list[str]:
    """Return nothing in the supervisor, which goes on, and in each child the words that it was started with."""
    child_process: Any = import_module("salon_jobs.worker.child_process")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        return _serve(theirs)
    theirs.close()
    _Copy.template = ours
    copying: Any = types.ModuleType("subprocess")
    copying.__dict__.update(subprocess.__dict__, Popen=_Copy)
    child_process.subprocess = copying
    return []


class _Copy(subprocess.Popen[bytes]):
    """Child that is cloned, where Popen would fork and execute."""

    template: ClassVar[socket.socket]
    _asking = threading.Lock()
    pid: int

    def _execute_child(self, args: Sequence[str], _executable: Any, _preexec: Any, *rest: Any) -> None:
        pass_fds, standard_input, standard_output, new_session = rest[1], rest[7], rest[10], rest[18]
        descriptors = {0: standard_input, 1: standard_output} | {number: number for number in pass_fds}
        message = json.dumps([args[1:], [*descriptors], new_session]).encode()
        with self._asking:
            socket.send_fds(self.template, [message], [*descriptors.values()])
            self.pid = int(self.template.recv(_MOST_BYTES))
        self._child_created = True
        os.close(standard_input)
        os.close(standard_output)


def _serve(end: socket.socket) -> list[str]:
    """Clone until the supervisor has ended. Return in a clone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a group is signalled for the supervisor's sake
    while True:
        message, descriptors, _, _ = socket.recv_fds(end, _MOST_BYTES, _MOST_DESCRIPTORS)
        if not message:
            os._exit(0)
        words, numbers, new_session = json.loads(message)
        if not (pid := _clone()):
            end.close()
            if new_session:
                os.setsid()
            _begin(words, dict(zip(numbers, descriptors, strict=True)))
            return list(words)
        for descriptor in descriptors:
            os.close(descriptor)
        end.send(str(pid).encode())


def _begin(words: list[str], descriptors: dict[int, int]) -> None:
    """Be in this process what a new interpreter would be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    moved = {number: fcntl.fcntl(given, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for number, given in descriptors.items()}
    for given in descriptors.values():
        os.close(given)
    for number, there in moved.items():
        os.dup2(there, number)
        os.close(there)
    sys.argv, sys.orig_argv = words, [sys.executable, *words]


def _clone() -> int:
    """Fork, but as another child of our parent: its ID here, 0 there."""
    place = ctypes.c_void_p(_place_of_thread_id())
    pointers = (place, None) if os.uname().machine == "x86_64" else (None, place)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(ctypes.PyDLL(None).syscall(_CLONE, ctypes.c_long(_FLAGS), None, None, *pointers))
    if pid:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return pid


def _place_of_thread_id() -> int | None:
    """Return where the C library has the ID of this thread; None where the kernel does not tell."""
    place = ctypes.c_void_p()
    return None if ctypes.PyDLL(None).prctl(_PR_GET_TID_ADDRESS, ctypes.byref(place), 0, 0, 0) else place.value
