"""Passes over a jaxpr, and what they read of it."""
