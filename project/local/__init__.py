"""Local servers and tools for the demo and the tests, on a machine without servers."""
