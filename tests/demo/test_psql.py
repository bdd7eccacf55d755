"""Tests of the prompt on the demo's database."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from project import settings
from project.demo import psql, server
from project.demo.server import demo_server
from project.local.postgres_install import server_account, temporary_home
from tests.docs.markdown import ROOT


def run_psql(statement: str) -> str:
    command = [sys.executable, "-m", "project.demo.psql", "-Atc", statement]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def test_it_connects_as_the_superuser_to_the_server_that_the_environment_names() -> None:
    assert run_psql("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == "t"


def test_without_a_running_server_there_is_no_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(psql, "HOME", tmp_path)
    assert psql.running_url() is None
    (tmp_path / "data").mkdir()
    (tmp_path / "password").write_text("secret")
    (tmp_path / "data" / "postmaster.pid").write_text("1\n\n\n1\n")
    assert psql.running_url() is None


@pytest.mark.usefixtures("embedded")
def test_it_finds_the_server_of_make_serve_while_that_runs(capfd: pytest.CaptureFixture[str]) -> None:
    with demo_server() as running, running.database() as database:
        database.mark_finished()
        assert psql.main(["-Atc", "SELECT current_database()"]) == 0
        assert capfd.readouterr().out.strip() == database.name


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the demo's server out of ``.demo``, and DATABASE_URL_BOOTSTRAP out of the settings."""
    home = temporary_home(server_account())
    monkeypatch.setitem(settings.SALON_JOBS, "BOOTSTRAP_URL", None)
    monkeypatch.setattr(server, "HOME", home)
    monkeypatch.setattr(psql, "HOME", home)
    yield
    shutil.rmtree(home, ignore_errors=True)
