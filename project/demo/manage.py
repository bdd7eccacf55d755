"""``manage.py`` on the database of ``make serve`` while that runs: ``python -m project.demo.manage COMMAND …``.

The superuser stands in for the roles of a web process, whose passwords only ``make serve`` knows.
"""

from __future__ import annotations

import os
import sys
from urllib.parse import urlencode, urlsplit, urlunsplit

# The settings ask for the address of the database that the command of a process needs, and it is not this one's.
ARGUMENTS = sys.argv[1:]
del sys.argv[1:]

from project import settings  # noqa: E402
from project.demo.psql import running_url  # noqa: E402
from project.demo.server import DemoServer  # noqa: E402


def main(arguments: list[str]) -> None:
    """Become that command."""
    url = running_url()
    database = url and DemoServer(url, ours=True).finished_database()
    if not url or not database:
        sys.exit("run make serve first, and leave it running")
    environment = {**settings.INHERITED_ENVIRONMENT, "DJANGO_SETTINGS_MODULE": "project.demo.settings"}
    for variable, role in (("DATABASE_URL", "web"), ("OPERATOR_DATABASE_URL", "operator")):
        query = urlencode({"options": f"-c role={settings.SALON_JOBS['ROLES'][role]}"})
        environment[variable] = urlunsplit(urlsplit(url)._replace(path=f"/{database.name}", query=query))
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main(ARGUMENTS)
