"""Completes pyproject.toml: on a package index, the README's links lead to the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
base = f"{project['urls']['Source']}/blob/v{project['version']}/"
readme = re.sub(r"\]\((?!https?://|#)", f"]({base}", (ROOT / "README.md").read_text())

setup(long_description=readme, long_description_content_type="text/markdown")
