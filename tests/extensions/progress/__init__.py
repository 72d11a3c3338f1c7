"""`fx.progress` and the loops that have it."""
