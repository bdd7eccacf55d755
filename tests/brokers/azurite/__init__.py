"""Brings Azurite, Microsoft's emulator of Azure Storage, by npm; node itself comes with a wheel."""
