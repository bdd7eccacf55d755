"""The demo's tables, one file for each part of the business."""

from project.salon.models.customer import Customer, CustomerNote
from project.salon.models.membership import Membership
from project.salon.models.operator import Operator, OperatorInvitation, OperatorSession
from project.salon.models.register import DailySales, Sale
from project.salon.models.reservation import Reservation
from project.salon.models.source_file import ParseTask, SourceFile
from project.salon.models.store import Store, StoreOwned

__all__ = [
    "Customer",
    "CustomerNote",
    "DailySales",
    "Membership",
    "Operator",
    "OperatorInvitation",
    "OperatorSession",
    "ParseTask",
    "Reservation",
    "Sale",
    "SourceFile",
    "Store",
    "StoreOwned",
]
