"""Admin of a demo database, served until Ctrl-C."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from project.demo.processes import Processes
from project.demo.server import DemoDatabase
from project.demo.steps import bootstrap
from project.local.ports import free_port

_LOGIN: Final = "operator"


def serve(console: Console, database: DemoDatabase) -> None:
    """Create a login, start the web process under the web and operator roles, print its URL, and wait for Ctrl-C."""
    password = secrets.token_urlsafe(12)
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="salon_demo_") as logs, Processes(Path(logs)) as processes:
        bootstrap(processes, database)
        migrator = {"DATABASE_URL_MIGRATOR": database.url("migrator")}
        processes.run("create_demo_operator", _LOGIN, environment=migrator, stdin=f"{password}\n")
        processes.start(
            "runserver",
            *("--noreload", "--insecure", address),
            environment={
                "DATABASE_URL": database.url("web"),
                "OPERATOR_DATABASE_URL": database.url("operator"),
                "SECRET_KEY": secrets.token_urlsafe(50),
            },
        )
        processes.wait_until_answers("runserver", f"http://{address}/admin/login/")
        console.print(f"\nAdmin: [bold]http://{address}/admin/salon_jobs/job/?state__exact=failed[/]", soft_wrap=True)
        console.print(f"Login: [bold]{_LOGIN}[/]  password: [bold]{password}[/]   (Ctrl-C ends)")
        try:
            processes.wait("runserver")
        except KeyboardInterrupt:
            return
        processes.check()
