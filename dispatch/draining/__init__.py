"""Draining: what programs published is replayed in order, and threads wait for it."""
