"""Project of a few lines with one app, whose manage.py runs in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.interpreter import ROOT, run_command, run_python

APPS = ("django.contrib.auth", "django.contrib.contenttypes", "salon_jobs", "pgtrigger", "shop")


class TinyProject:
    """Project in its own folder. ``first`` is the beginning of its settings, ``shop`` its only app.

    Each command starts an interpreter; with ``forked``, a fork of `tests.interpreter`, which has imported Django.
    """

    def __init__(
        self,
        folder: Path,
        *,
        url: str = "postgresql://u:p@127.0.0.1:1/x",
        apps: tuple[str, ...] = APPS,
        first: str = "",
        tasks: str = "",
        urls: str = "",
        forked: bool = False,
        **settings: object,
    ) -> None:
        self.folder = folder
        self._run = run_python if forked else partial(run_command, sys.executable)
        lines = [first, "import environ", f"DATABASES = {{'default': environ.Env.db_url_config({url!r})}}"]
        given = {"SECRET_KEY": "for tests only", "USE_TZ": True, "INSTALLED_APPS": list(apps), "ROOT_URLCONF": "urls"}
        lines += [f"{name} = {value!r}" for name, value in (given | settings).items()]
        (folder / "shop").mkdir()
        for name, text in {
            "tiny_settings": "\n".join(lines),
            "urls": f"{urls}\nurlpatterns = []\n",
            "shop/__init__": "",
            "shop/tasks": tasks,
            "manage": (ROOT / "manage.py").read_text().replace("project.settings", "tiny_settings"),
        }.items():
            (folder / f"{name}.py").write_text(text)

    def manage(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run manage.py of the project, without the settings of the tests."""
        inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        surroundings = {**inherited, "PYTHONPATH": str(ROOT), **environment}
        return self._run("manage.py", *arguments, environment=surroundings, folder=self.folder)

    def loads(self, *packages: str) -> list[str]:
        """Return which of these packages a process of the project has loaded after its start."""
        program = f"import sys; print(*sorted({set(packages)!r} & set(sys.modules)))"
        done = self.manage("shell", "--no-imports", "-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()
