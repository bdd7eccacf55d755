"""Tests that a program forked by the server finds and does what it would in a new interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreter import ROOT, run_python, start_python
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.process

SURROUNDINGS = """
import atexit, gc, json, locale, os, random, signal, sys, threading, time, warnings
atexit.register(print, "ended")
from django.apps import apps
from django.conf import settings
from django.db import connections
print(json.dumps({
    "words": [sys.argv, sys.orig_argv, sys.executable],
    "environment": [dict(os.environ), sorted(os.environ), time.tzname, locale.getlocale()],
    "place": [os.getcwd(), sys.path, os.getsid(0) == os.getpid()],
    "main": [repr(__spec__), __name__, globals().get("__file__"), sys.modules["__main__"].__dict__ is globals()],
    "flags": [sys.dont_write_bytecode, gc.isenabled(), gc.get_threshold(), sys.getrecursionlimit()],
    "warnings": [repr(each) for each in warnings.filters if each[2].__module__ == "builtins"],
    "signals": [repr(signal.getsignal(number)) for number in signal.valid_signals()],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "streams": [[s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.name]
                for s in (sys.stdout, sys.stderr)],
    "threads": [threading.active_count(), len(os.listdir("/proc/self/task"))],
    "open": [os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in sorted(os.listdir("/proc/self/fd"), key=int)
             if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")],
    "django": [settings.configured, apps.ready, apps.app_configs],
}, default=str))
"""
ENDS = {
    "return": "print('done')",
    "status": "raise SystemExit(3)",
    "message": "import sys; sys.exit('in vain')",
    "error": "def wrong():\n    raise ValueError('in vain')\nwrong()",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "hook": "import sys; sys.excepthook = lambda *error: print('reported', error[1]); raise ValueError('in vain')",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
}


def both(tmp_path: Path, text: str, *, code: bool, **environment: str) -> list[subprocess.CompletedProcess[str]]:
    """Run the same program in a new interpreter, then by the server."""
    (tmp_path / "program.py").write_text(text)
    words = ["-c", text] if code else [str(tmp_path / "program.py")]
    surroundings = {**os.environ, **environment}
    new = subprocess.run(
        [sys.executable, *words, "word"],
        cwd=ROOT,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=False,
    )
    return [new, run_python(*words, "word", environment=surroundings)]


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"DJANGO_SETTINGS_MODULE": "project.settings", "TZ": "Asia/Tokyo", "PYTHONPATH": "/somewhere:/else"}, True),
        ({"PYTHONUNBUFFERED": "", "PYTHONDONTWRITEBYTECODE": ""}, False),
        ({"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}, False),
    ],
)
def test_program_finds_surroundings_of_new_interpreter(tmp_path: Path, environment: dict[str, str], code: bool) -> None:
    new, forked = both(tmp_path, SURROUNDINGS, code=code, **environment)
    assert "ended" in new.stdout
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


@pytest.mark.parametrize("end", ENDS)
def test_program_ends_as_in_new_interpreter(tmp_path: Path, end: str) -> None:
    new, forked = both(tmp_path, ENDS[end], code=False)
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_some_variables_need_new_interpreter() -> None:
    code = "import sys; print(sys.flags.dev_mode, 'django' in sys.modules)"
    for environment, expected in (({}, "False True\n"), ({"PYTHONDEVMODE": "1"}, "True False\n")):
        assert run_python("-c", code, environment={**os.environ, **environment}).stdout == expected


def test_program_is_signalled_and_awaited(tmp_path: Path) -> None:
    code = "import os, signal, sys\nprint(os.getpid(), os.getsid(0), flush=True)\nsignal.pause()"
    with (tmp_path / "output").open("w+") as output:
        process = start_python(
            "-c", code, environment=os.environ, stdout=output.fileno(), stderr=output.fileno(), new_session=True
        )
        while not (tmp_path / "output").read_text().endswith("\n"):
            assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == process.poll() == -signal.SIGTERM
        process.kill()
    assert (tmp_path / "output").read_text().split() == [str(process.pid)] * 2
