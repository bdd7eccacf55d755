"""Publishers and sources, one folder for each broker. No flow is imported here."""
