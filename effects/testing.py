"""For tests of what programs do: the order of what was seen, and kernels whose grid is visited in several orders."""

import typing as _typing

from effects.dispatch.testing import assert_order as assert_order

if _typing.TYPE_CHECKING:
    from effects.kernels import check_grid_races as check_grid_races
else:

    def __getattr__(name: str) -> _typing.Any:  # Pallas is imported with it
        if name != "check_grid_races":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from effects.kernels import check_grid_races

        return check_grid_races


__all__ = ["assert_order", "check_grid_races"]
