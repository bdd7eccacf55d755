"""Django app with the table that the jobs of ``waiting`` read and write, for us and for the peers that run Django."""
