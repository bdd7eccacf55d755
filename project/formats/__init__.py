"""Date and time formats."""
