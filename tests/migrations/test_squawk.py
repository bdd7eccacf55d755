"""Lints the SQL of every migration, salon_jobs' own and the demo's, in both directions, as ``sqlmigrate`` writes it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from tests.interpreter import ROOT

CONFIG = ROOT / ".squawk.toml"
SQUAWK = Path(sys.executable).with_name("squawk")
RULES = tomllib.loads(CONFIG.read_text())
# On the command line they take the place of those in the file.
EXCLUDED = {
    "forwards": RULES["excluded_rules"],
    "backwards": RULES["excluded_rules"] + RULES["backwards"]["excluded_rules"],
}
# Tables that are made in the same migration: nobody waits for the validation of their keys.
_MAKE_TABLES = ("0001_tables", "0005_membership", "0006_source_file")
NOBODY_WAITS = {(f"salon.{name}.sql", "constraint-missing-not-valid") for name in _MAKE_TABLES}
# The same statement adds checks that allow as much; functions use the column and each other, and are replaced with them.
REPLACED = {
    ("salon_jobs.0008_shorter_checks.sql", "ban-drop-constraint"),
    ("salon_jobs.0010_job_changes.sql", "ban-drop-column"),
    ("salon_jobs.0010_job_changes.sql", "ban-drop-function"),
}


def written(folder: Path, direction: str) -> list[Path]:
    """Write down what every migration would run, in a file each."""
    paths: list[Path] = []
    for app, name in sorted(MigrationLoader(connections["owner"]).disk_migrations):
        if app in {"salon_jobs", "salon"}:
            sql = io.StringIO()
            call_command(
                "sqlmigrate", app, name, database="owner", backwards=direction == "backwards", stdout=sql, no_color=True
            )
            paths.append(folder / f"{app}.{name}.sql")
            paths[-1].write_text(sql.getvalue())
    return paths


def findings(paths: list[Path], direction: str) -> list[tuple[str, int, str]]:
    done = subprocess.run(
        [SQUAWK, "--config", CONFIG, "--exclude", ",".join(EXCLUDED[direction]), "--reporter", "json", *paths],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return [(Path(one["file"]).name, one["line"], one["rule_name"]) for one in json.loads(done.stdout)]


@pytest.mark.parametrize("direction", EXCLUDED)
def test_migrations_pass_squawk(database: None, tmp_path: Path, direction: str) -> None:
    paths = written(tmp_path, direction)
    assert {"salon_jobs.0001_initial.sql", "salon.0001_tables.sql"} < {path.name for path in paths}
    hidden = [path.name for path in paths if "CANNOT BE WRITTEN AS SQL" in path.read_text()]
    assert hidden == []
    assert {(file, rule) for file, _, rule in findings(paths, direction)} - NOBODY_WAITS - REPLACED == set()


def test_squawk_finds_bad_migrations(tmp_path: Path) -> None:
    path = tmp_path / "bad.sql"
    path.write_text("BEGIN; CREATE INDEX customer_name ON customer (name); COMMIT;")
    rules = {rule for _, _, rule in findings([path], "forwards")}
    assert {"require-concurrent-index-creation", "require-lock-timeout"} <= rules
