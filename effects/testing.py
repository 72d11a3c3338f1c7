"""For tests of what programs do: the order of what was seen, runs that have the same records, and kernels whose grid is
visited in several orders."""

import typing as _typing

from effects import _later
from effects.dispatch.testing import assert_order as assert_order

if _typing.TYPE_CHECKING:  # what `_LATER` imports
    from effects.extensions.runs.diff import assert_same_run as assert_same_run
    from effects.kernels import check_grid_races as check_grid_races
else:

    def __getattr__(name: str) -> _typing.Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _later.load(_LATER[name], __name__, name)


_LATER = {"assert_same_run": "effects.extensions.runs.diff", "check_grid_races": "effects.kernels"}
"""By name, the module that is imported when it is asked for: Pallas is with one of them."""

__all__ = ["assert_order", "assert_same_run", "check_grid_races"]
