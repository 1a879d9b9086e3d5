"""Held against reality: what real servers measured, beside what is simulated."""
