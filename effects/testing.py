"""For tests of what programs do: the order of what was seen, and kernels whose grid is visited in several orders."""

from effects.dispatch.testing import assert_order as assert_order
from effects.extensions.kernels.grid_races import check_grid_races as check_grid_races

__all__ = ["assert_order", "check_grid_races"]
