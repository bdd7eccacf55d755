"""Installs the peers into ``.bench/peers``, each into an environment of its own, as their lock files say."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.peers import HERE, Peer, node
from benchmarks.processes import ProcessFailed, run
from project.settings import INHERITED_ENVIRONMENT

_MINORS = (14, 13, 12)


def install_all(peers: Iterable[Peer], console: Console) -> list[str]:
    """Install those that are not yet; return the names of those that could not be, with the reason on the console."""
    missing: list[str] = []
    for peer in peers:
        if peer.is_installed:
            continue
        console.print(f"Installing {peer.name} {peer.version} into {peer.folder}")
        try:
            _install(peer)
        except ProcessFailed as error:
            missing.append(peer.name)
            (peer.folder / "failed.txt").write_text(str(error))
            console.print(f"[bold red]{peer.name} could not be installed:[/] {error}")
    return missing


def why_missing(peer: Peer) -> str:
    """Return why a peer is not installed, as far as it is known."""
    failed = peer.folder / "failed.txt"
    if failed.exists():
        return f"it could not be installed: {failed.read_text().strip()[:300]}"
    return "it is not installed; run: make bench-peers"


def _install(peer: Peer) -> None:
    shutil.rmtree(peer.folder, ignore_errors=True)
    peer.folder.mkdir(parents=True)
    environment = {**INHERITED_ENVIRONMENT, "npm_config_update_notifier": "false"}
    if peer.is_node:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / peer.name / name, peer.folder)
        run([*_npm(), "ci", "--no-audit", "--no-fund", "--ignore-scripts"], environment, cwd=peer.folder)
    else:
        run([_python(peer), "-m", "venv", "venv"], environment, cwd=peer.folder)
        pip = ["venv/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, "--requirement", str(peer.lock)], environment, cwd=peer.folder)
    shutil.copy(peer.lock, peer.folder / "installed.lock")


def _npm() -> list[str]:
    """Return npm run by the Node that will run the peer: the wheel brings both."""
    script = Path(node()).resolve().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [node(), str(script)] if script.exists() else ["npm"]


def _python(peer: Peer) -> str:
    """Return an interpreter that is new enough: ours, one on the PATH, or one of pyenv's. Raises ProcessFailed."""
    if sys.version_info >= peer.least_python:
        return sys.executable
    for candidate in _candidates():
        try:
            run(
                [candidate, "-c", f"import sys; sys.exit(sys.version_info < {peer.least_python})"],
                INHERITED_ENVIRONMENT,
            )
        except (OSError, ProcessFailed):
            continue
        return candidate
    needed = ".".join(map(str, peer.least_python))
    raise ProcessFailed(f"{peer.name} {peer.version} needs Python {needed} or newer, and none was found")


def _candidates() -> Iterator[str]:
    pyenv = Path(INHERITED_ENVIRONMENT.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in _MINORS:
        yield f"python3.{minor}"
        yield from map(str, pyenv.glob(f"versions/3.{minor}.*/bin/python"))
