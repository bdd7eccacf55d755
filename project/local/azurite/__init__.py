"""Azurite, Microsoft's emulator of Azure Storage; npm installs it, and node comes from a wheel."""
