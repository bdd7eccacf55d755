"""Runs Azurite, Microsoft's emulator of Azure Storage; npm brings it, and a wheel brings node."""
