"""Barriers over all processes of one computation."""
