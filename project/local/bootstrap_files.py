"""Generator of ``bootstrap_sql/`` from the declared roles: ``python -m project.local.bootstrap_files``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from salon_jobs.access.bootstrap import build_scripts, render_psql
from salon_jobs.access.roles import ROLE_SPECS
from salon_jobs.conf import Roles

FOLDER: Final = Path(__file__).resolve().parents[2] / "bootstrap_sql"
DEMO_OWNER_ROLES: Final = ("invitation_cleanup_owner",)


def bootstrap_files() -> dict[str, str]:
    """Return the text of every file by name, for the default role names and the demo's own owner roles."""
    files: dict[str, str] = {}
    for number, script in enumerate(build_scripts(Roles(), DEMO_OWNER_ROLES), start=1):
        ours = script.spec in ROLE_SPECS
        stem = f"{number:03}" if ours else f"{100 + number - len(ROLE_SPECS):03}_demo"
        files[f"{stem}_{script.name}_role.sql"] = render_psql(script)
    return files


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in bootstrap_files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
