"""What the notebooks and labs use: checks, figures, and the labs generator."""
