"""What the demo and the tests need on a machine without servers."""
