"""Arithmetic only: what a model costs in parameters, FLOPs, bytes and time. Imports no torch."""
