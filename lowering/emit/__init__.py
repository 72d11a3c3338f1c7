"""From equations to StableHLO."""
