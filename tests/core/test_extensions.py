"""What features attach to a run."""

from __future__ import annotations

from salon_jobs.core.extensions import Extensible, Extension


class First(Extension):
    """What one feature keeps."""


class Second(Extension):
    """What another keeps."""


def test_extensions_are_found_by_class() -> None:
    run, other = Extensible(), Extensible()
    first, second, later = run.attach(First()), run.attach(Second()), First()
    assert (run.extension(First), run.extension(Second)) == (first, second)
    assert run.attach(later) is later
    assert (run.extension(First), run.extension(Second)) == (later, second)
    assert not other.extensions
    assert other.extension(First) is None
