"""Streams: which epochs each thread has opened, and the runtime tokens that number them."""
