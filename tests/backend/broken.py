"""Module that cannot be imported."""

raise RuntimeError("this module cannot be imported")
