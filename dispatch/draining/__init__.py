"""Draining: what programs published is replayed in order, and whoever wants to see it waits."""
