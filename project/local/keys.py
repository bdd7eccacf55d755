"""The tests with stores that have keys of another type: ``python -m project.local.keys bigint tests/tenancy``.

They run in a copy of the project, kept in ``.keys``, in which the demo's model of a store has that primary key, and
handlers the annotation that follows from it. Without paths, ``TESTS`` run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_HOME: Final = ROOT / ".keys"
_MODEL: Final = "    {}\n    name = models.CharField(max_length=120)\n"
_MIGRATION: Final = 'name="Store",\n            fields=[\n                ("id", {}),\n'
# The primary key in the model and in its migration, and its annotation.
_UUID: Final = (
    "id = models.UUIDField(primary_key=True, default=uuid.uuid4)",
    "models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)",
    "UUID",
)
KEYS: Final = {
    "bigint": (
        "id = models.BigAutoField(primary_key=True)",
        "models.BigAutoField(primary_key=True, serialize=False)",
        "int",
    ),
    "text": (
        "id = models.SlugField(primary_key=True, max_length=100)",
        "models.SlugField(max_length=100, primary_key=True, serialize=False)",
        "str",
    ),
}
# What the type of a store's key can break: its column, parameters and casts in SQL, and what reads it from text. Tests
# about UUIDs alone are left out, marked so.
TESTS: Final = (
    *(f"tests/tenancy/test_{name}.py" for name in ("fuzz", "isolation_kit", "job_rights", "matrix", "middleware")),
    "tests/tenancy/test_side_channels.py",
    *(f"tests/jobs/test_{name}.py" for name in ("depths", "fan_out", "limits")),
    *(f"tests/{name}.py" for name in ("worker/test_chunks", "worker/test_claimer", "inbox/test_processor")),
    *("tests/admin/test_job_admin.py", "tests/test_erasure.py", "tests/test_testing.py"),
)


def copy_with(key: str) -> Path:
    """Return a new copy of the project whose stores have keys of this type."""
    copy = _HOME / key
    shutil.rmtree(copy, ignore_errors=True)
    # Folders with a dot hold environments, servers and this copy.
    shutil.copytree(
        ROOT, copy, ignore=lambda folder, names: {name for name in names if _is_left_out(Path(folder), name)}
    )
    (copy / ".venv").symlink_to(ROOT / ".venv")
    for place, old, new in zip((_MODEL, _MIGRATION, "store_id: {}"), _UUID, KEYS[key], strict=True):
        _replace(copy, place.format(old), place.format(new))
    return copy


def _is_left_out(folder: Path, name: str) -> bool:
    return name == "__pycache__" or (name.startswith(".") and (folder / name).is_dir())


def _replace(copy: Path, old: str, new: str) -> None:
    found = [path for name in ("project", "tests") for path in (copy / name).rglob("*.py") if old in path.read_text()]
    if not found:
        raise SystemExit(f"{old!r} is not in the project anymore: change {__name__}")
    for path in found:
        path.write_text(path.read_text().replace(old, new))


def main() -> int:
    """Run pytest in the copy; return its status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("key", choices=KEYS)
    parser.add_argument("-m", dest="marks", default="not image and not system", help="as pytest has it")
    options, pytest = parser.parse_known_args()
    if missing := [test for test in TESTS if not (ROOT / test).exists()]:
        raise SystemExit(f"{', '.join(missing)} of {__name__}.TESTS: there is no such file")
    tests = () if any(word.startswith("tests") for word in pytest) else TESTS
    chosen = ("-m", f"({options.marks}) and not uuid_keys", *pytest, *tests)
    words = (sys.executable, "-m", "pytest", "-q", *chosen)
    return subprocess.run(words, cwd=copy_with(options.key), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
