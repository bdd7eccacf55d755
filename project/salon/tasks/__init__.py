"""Imports the twelve tasks, which are kept by the part of the business they belong to."""

from project.salon.tasks import customer, operator, register, reservation, smoke

__all__ = ["customer", "operator", "register", "reservation", "smoke"]
