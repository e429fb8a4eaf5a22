"""Helpers of the inference engineering course: accounts, a small engine, clocks, and the lab kit."""

__version__ = "0.1.0"
