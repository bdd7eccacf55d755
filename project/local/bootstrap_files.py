"""Generator of ``bootstrap_sql/roles.sql`` from the declared roles: ``python -m project.local.bootstrap_files``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from django.conf import settings

from salon_jobs.access.bootstrap import build_scripts, render_psql
from salon_jobs.conf import Roles

FILE: Final = Path(__file__).resolve().parents[2] / "bootstrap_sql" / "roles.sql"
DEMO_OWNER_ROLES: Final = ("invitation_cleanup_owner",)


def bootstrap_file() -> str:
    """Return the text of the file for the default role names and the demo's own owner roles."""
    return render_psql(build_scripts(Roles(extra_owners=DEMO_OWNER_ROLES)))


if __name__ == "__main__":
    settings.configure(DATABASES={"default": {}})  # the roles are the same whatever the settings say
    FILE.write_text(bootstrap_file(), encoding="utf-8")
