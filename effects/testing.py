"""For tests of what programs do: the order of what was seen, runs that have the same records, and kernels whose grid is
visited in several orders."""

import typing as _typing

from effects.dispatch.testing import assert_order as assert_order

if _typing.TYPE_CHECKING:
    from effects.extensions.runs.diff import assert_same_run as assert_same_run
    from effects.kernels import check_grid_races as check_grid_races
else:

    def __getattr__(name: str) -> _typing.Any:  # Pallas is imported with one of them
        if name == "check_grid_races":
            from effects.kernels import check_grid_races

            return check_grid_races
        if name == "assert_same_run":
            from effects.extensions.runs.diff import assert_same_run

            return assert_same_run
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["assert_order", "assert_same_run", "check_grid_races"]
