"""The worker program: it claims segments, computes them, and scales apart from the rest."""
