"""Adds jobs when told to, in any tree that has the tasks of the benchmark; a program of its own, which imports no more.

It answers each line it reads, such as ``one 1000``, when so many have been added one by one, or in one call (``many``).
"""

from __future__ import annotations

import sys

import django


def main() -> None:
    """Add jobs until there are no more orders."""
    django.setup()
    from benchmarks.tasks import noop  # noqa: PLC0415 - only now can tasks be declared

    for line in sys.stdin:
        how, count = line.split()
        if how == "one":
            for _ in range(int(count)):
                noop.enqueue()
        else:
            noop.enqueue_many(noop.call() for _ in range(int(count)))
        sys.stdout.write("added\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
