"""Clocks, statistics and the measured ceilings of this machine."""
