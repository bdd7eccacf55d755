"""Sets Django up and runs one action: its ``main`` takes the arguments and prints the figures."""

from __future__ import annotations

import importlib
import sys

import django

if __name__ == "__main__":
    django.setup()
    importlib.import_module(f"benchmarks.ours.{sys.argv[1]}").main(*sys.argv[2:])
