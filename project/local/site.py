"""Builder of the documentation site, strictly: ``python -m project.local.site [FOLDER]``.

The pages of ``docs/`` are copied, the changelog and the notes for contributors join them, and the page of the public
API gets a directive for each name that it and ``errors.md`` list, which shows its signature and docstring. Each page
gets the version and a link to the repository. Zensical does the rest, as ``mkdocs.yml`` says. A link or an anchor that
does not exist fails the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
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


def with_signatures(page: str, errors: str) -> str:
    """Return the page of the public API with a directive for every public name at its end, to which its tables link."""
    lines = ["", "## Signatures", "", "Of every public name, and of the [errors](errors.md)."]
    for module, names in public_names(page, errors).items():
        lines += ["", f"### From `{module}`"]
        for name in names:
            lines += ["", f"::: {module}.{name}"]
    linked = _MODULE.sub(
        lambda found: re.sub(r"^\| `(\w+)`", rf"| [`\1`](#{found['module']}.\1)", found[0], flags=re.MULTILINE), page
    )
    return linked + "\n".join(lines) + "\n"


def stage(folder: Path) -> None:
    """Write the sources of the site to ``folder/docs``, and its configuration next to it."""
    pages = folder / "docs"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    release = f"salon_jobs {project['version']}"
    footer = f'{release} · <a href="{project["urls"]["Source"]}">Source code</a>'
    configuration = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    configuration = configuration.replace("site_name: salon_jobs\n", f"site_name: {release}\n")
    (folder / "mkdocs.yml").write_text(f"{configuration}copyright: '{footer}'\n", encoding="utf-8")
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
    texts = [(reference / name).read_text(encoding="utf-8") for name in ("public-api.md", "errors.md")]
    (reference / "public-api.md").write_text(with_signatures(*texts), encoding="utf-8")


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
