"""The real PgBouncer, in transaction mode, in front of the tests' server."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from project.local.ports import free_port
from tests.settings import PASSWORD, url_for
from tests.waiting import eventually

_ROLES = ("app", "worker_runtime", "jobs_operator")


@contextmanager
def pgbouncer(*, pool_size: int) -> Generator[int]:
    """Run PgBouncer for the block; yield its port. Clients of a role share ``pool_size`` connections."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    assert program, "install Debian's pgbouncer; .ci/run does"
    # PgBouncer refuses to run as root.
    user = "nobody" if os.geteuid() == 0 else None
    server = urlsplit(url_for(None))
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as name:
        home, port = Path(name), free_port()
        (home / "users.txt").write_text("".join(f'"{role}" "{PASSWORD}"\n' for role in _ROLES))
        (home / "pgbouncer.ini").write_text(
            f"""
[databases]
* = host={server.hostname} port={server.port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {home}/users.txt
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
{_no_prepared_statements(program)}
"""
        )
        if user is not None:
            for path in (home, *home.iterdir()):
                shutil.chown(path, user)
        with (home / "log").open("w") as log:
            process = subprocess.Popen([program, str(home / "pgbouncer.ini")], user=user, stdout=log, stderr=log)
        try:
            eventually(partial(_accepts, port, process), what=(home / "log").read_text)
            yield port
        finally:
            process.kill()
            process.wait()


def _no_prepared_statements(program: str) -> str:
    """Disable tracking of prepared statements (1.21 and newer), which would hide that a session relies on them."""
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"(\d+)\.(\d+)", output)
    assert version, output
    return "max_prepared_statements = 0" if (int(version[1]), int(version[2])) >= (1, 21) else ""


def _accepts(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
