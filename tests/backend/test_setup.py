"""What a project hears when the backend cannot work."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import django

from salon_jobs.backend import SalonJobsBackend
from tests.e2e.worker_process import INHERITED
from tests.interpreter import run_python

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = {apps}
DATABASES = {{"default": {{"ENGINE": "django.db.backends.{engine}", "NAME": "x", "HOST": "127.0.0.1", "PORT": 1}}}}
TASKS = {{"default": {{"BACKEND": "salon_jobs.backend.SalonJobsBackend"}}}}
"""
PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
INSTALLED = ["pgtrigger", "salon_jobs"]


def python(
    tmp_path: Path, code: str, *, apps: list[str], engine: str = "postgresql"
) -> subprocess.CompletedProcess[str]:
    """Run Python in a project with these settings."""
    (tmp_path / "a_project.py").write_text(SETTINGS.format(apps=apps, engine=engine))
    environment = {
        **{name: value for name, value in os.environ.items() if name in INHERITED},
        "DJANGO_SETTINGS_MODULE": "a_project",
        "PYTHONPATH": str(tmp_path),
    }
    return run_python("-c", f"import django\n{code}", environment=environment)


def test_missing_app_is_named(tmp_path: Path) -> None:
    code = f"""
from django.core.management import call_command
django.setup()
import {PACKAGE}
try:
    call_command("check")
except SystemExit as exit:
    print(exit)
except Exception as error:
    print(error)
@{PACKAGE}.task
def add(): ...
"""
    done = python(tmp_path, code, apps=[PACKAGE] if PACKAGE == "django_tasks" else [])
    assert "(salon_jobs.E070) the backend of TASKS['default'] needs the app salon_jobs" in done.stdout
    assert "HINT: add 'salon_jobs' and 'pgtrigger' to INSTALLED_APPS" in done.stdout
    assert done.stderr.splitlines()[-1].endswith(
        "the backend of TASKS['default'] needs the app salon_jobs, which is not installed: "
        "add 'salon_jobs' and 'pgtrigger' to INSTALLED_APPS"
    )


def test_crontab_where_another_backend_has_its_task(tmp_path: Path) -> None:
    """As in the settings of tests: every command runs, and ``check`` names the entry."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "tasks.py").write_text(f"from {PACKAGE} import task\n@task\ndef tidy(): ...\n")
    (shop / "crontab.py").write_text(
        "from salon_jobs import cron\nfrom shop.tasks import tidy\ncron('0 3 * * *', tidy)\n"
    )
    code = f"""
from django.conf import settings
settings.TASKS["default"]["BACKEND"] = "{PACKAGE}.backends.immediate.ImmediateBackend"
django.setup()
from django.core.management import call_command
call_command("check", "--tag", "salon_jobs")
"""
    done = python(tmp_path, code, apps=[*INSTALLED, "shop"])
    assert done.returncode == 0, done.stderr
    assert "(salon_jobs.W072) cron entries that start nothing" in done.stderr
    assert "'shop.tasks.tidy' (of ImmediateBackend)" in done.stderr


def test_check_names_other_database(tmp_path: Path) -> None:
    code = f"django.setup()\nfrom {PACKAGE} import task_backends\nprint(*task_backends['default'].check())"
    done = python(tmp_path, code, apps=INSTALLED, engine="sqlite3")
    assert done.returncode == 0, done.stderr
    assert "(salon_jobs.E071) the jobs of TASKS['default'] are kept in the database 'default'" in done.stdout
    assert "HINT: set SALON_JOBS['DATABASE'] to an alias" in done.stdout


def test_missing_backport_is_named(tmp_path: Path) -> None:
    code = "import sys\nsys.modules['django_tasks'] = None\ndjango.setup()\nimport salon_jobs.backend\nprint('there')"
    done = python(tmp_path, code, apps=INSTALLED)
    if django.VERSION >= (6, 0):
        assert (done.returncode, done.stdout) == (0, "there\n"), done.stderr
    else:
        assert done.returncode == 1
        assert "ImproperlyConfigured: SalonJobsBackend needs Django 6.0 or newer" in done.stderr
        assert "pip install 'salon-jobs[django-tasks]'" in done.stderr


def test_subclass_is_checked_without_connection(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from salon_jobs.backend import SalonJobsBackend\nclass Backend(SalonJobsBackend):\n    pass\n"
    )
    code = f"""
from django.conf import settings
settings.TASKS["default"]["BACKEND"] = "own.Backend"
django.setup()
import sys
assert "salon_jobs.backend.handlers" in sys.modules
from {PACKAGE} import task_backends
print(task_backends["default"].check())
"""
    done = python(tmp_path, code, apps=INSTALLED)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_backend_is_djangos() -> None:
    from salon_jobs.backend.framework import BaseTaskBackend

    assert issubclass(SalonJobsBackend, BaseTaskBackend)
