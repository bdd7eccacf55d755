"""Puts the store on the connection, and nothing else in the code base does."""
