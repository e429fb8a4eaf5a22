"""What the notebooks and labs use: checks, figures, notebook set-up, and the makers of labs and reports.

In a notebook: ``from helpers.lab import check, figures, notebook``. On the command line, ``python -m helpers.lab.X``
with X = generate (labs from solutions), execute (run and store outputs), lint (house rules), export (HTML report).
"""
