"""For tests of what programs do: the order of what was seen, and kernels whose grid is visited in several orders."""

from effects.dispatch.grid_races import check_grid_races as check_grid_races
from effects.dispatch.testing import assert_order as assert_order

__all__ = ["assert_order", "check_grid_races"]
