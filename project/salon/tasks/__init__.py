"""The twelve tasks, one module for each part of the business."""

from project.salon.tasks import customer, operator, register, reservation, smoke

__all__ = ["customer", "operator", "register", "reservation", "smoke"]
