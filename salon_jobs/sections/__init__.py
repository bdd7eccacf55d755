"""Declares the nested parts of ``SALON_JOBS``, one file each: what they hold, and what values are allowed."""
