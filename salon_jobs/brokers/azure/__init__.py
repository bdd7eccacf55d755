"""Azure Queue Storage."""
