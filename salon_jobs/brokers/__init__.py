"""Publishers and sources, one folder per broker. Imports no flow."""
