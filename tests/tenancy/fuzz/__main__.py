"""Long run of the fuzz on its own server: ``python -m tests.tenancy.fuzz --statements 1000000``."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import time

import django


def main() -> int:
    """Run the fuzz and print what it found; return 1 if it found anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--statements", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    logging.disable()
    from tests.conftest import migrated_database
    from tests.tenancy.fuzz.visits import run

    with migrated_database():
        began = time.monotonic()
        witness = run(options.statements, seed=options.seed)
        minutes = (time.monotonic() - began) / 60
    lines = [
        f"seed {options.seed}: {witness.statements:,} statements in {minutes:.1f} minutes",
        "visits: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(witness.visits.items())),
    ]
    for name, reports in (("leaks", witness.leaks), ("lost", witness.lost), ("surprises", witness.surprises)):
        lines += [f"{name}: {len(reports)}", *(f"  {each}" for each in reports[:10])]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if witness.leaks or witness.lost or witness.surprises else 0


if __name__ == "__main__":
    sys.exit(main())
