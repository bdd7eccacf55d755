"""Builder of the documentation site, strictly: ``python -m project.local.site [FOLDER]``.

The pages of ``docs/`` are copied, the changelog and the notes for contributors join them, and a page gets a directive
for each name that ``docs/reference/public-api.md`` and ``errors.md`` list, which shows its docstring. Zensical does the
rest, as ``mkdocs.yml`` says. A link or an anchor that does not exist fails the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".site"
_JOINED: Final = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_MODULE: Final = re.compile(r"^## `(?P<module>salon_jobs[\w.]*)`\n(?P<text>.*?)(?=^## )", re.DOTALL | re.MULTILINE)
_TESTING: Final = re.compile(r"^From `salon_jobs\.testing`: (?P<text>.*?)See ", re.DOTALL | re.MULTILINE)
_OPERATIONS: Final = re.compile(r"^From `salon_jobs\.access\.operations`;.*", re.DOTALL | re.MULTILINE)


def public_names(page: str, errors: str) -> dict[str, list[str]]:
    """Return the names that the pages of the public API and of the errors list, by module."""
    names = {
        found["module"]: re.findall(r"^\| `(\w+)`", found["text"], re.MULTILINE) for found in _MODULE.finditer(page)
    }
    if testing := _TESTING.search(page):
        names["salon_jobs.testing"] = re.findall(r"`(\w+)`", testing["text"])
    if operations := _OPERATIONS.search(page):
        names["salon_jobs.access.operations"] = [
            *re.findall(r"^\| `(\w+)\(", operations[0], re.MULTILINE),
            "LocksBriefly",
        ]
    names["salon_jobs.core.errors"] = re.findall(r"^\| `[A-Z._]+` \| `(\w+)`", errors, re.MULTILINE)
    return names


def api_reference(page: str, errors: str) -> str:
    """Return a page with a directive for every public name on these pages."""
    lines = [
        "# API reference",
        "",
        "Signatures and docstrings of the [public names](public-api.md) and the [errors](errors.md).",
    ]
    for module, names in public_names(page, errors).items():
        lines += ["", f"## `{module}`"]
        for name in names:
            lines += ["", f"::: {module}.{name}"]
    return "\n".join(lines) + "\n"


def stage(folder: Path) -> None:
    """Write the sources of the site to ``folder/docs``, and its configuration next to it."""
    pages = folder / "docs"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for source, target in _JOINED.items():
        (pages / target).write_text(
            (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "]("), encoding="utf-8"
        )
    for page in pages.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for source, target in _JOINED.items():
            text = text.replace(f"](../{source}", f"]({target}")
        page.write_text(text, encoding="utf-8")
    reference = pages / "reference"
    names = [(reference / name).read_text(encoding="utf-8") for name in ("public-api.md", "errors.md")]
    (reference / "api.md").write_text(api_reference(*names), encoding="utf-8")


def build(folder: Path) -> Path:
    """Build the site in a folder, which is emptied; returns where its first page is. Raises CalledProcessError."""
    stage(folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, check=True)
    return folder / "html" / "index.html"


def main() -> None:
    """Build the site, and print how to open it."""
    try:
        page = build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER)
    except subprocess.CalledProcessError as failed:  # which has said why
        sys.exit(failed.returncode)
    print(f"To read it: python3 -m http.server --directory {page.parent}")  # noqa: T201


if __name__ == "__main__":
    main()
