"""Completes pyproject.toml: on a package index, the README's links and pictures lead to the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
source, version = project["urls"]["Source"], f"v{project['version']}"
readme = re.sub(
    r'(!\[[^\]]*\]\(|(?:src|srcset)=")(?!https?://)', rf"\1{source}/raw/{version}/", (ROOT / "README.md").read_text()
)
readme = re.sub(r"\]\((?!https?://|#)", f"]({source}/blob/{version}/", readme)

setup(long_description=readme, long_description_content_type="text/markdown")
