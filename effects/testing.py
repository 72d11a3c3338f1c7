"""Assertions for tests of programs: on the order of effects, on equal records of two runs, and on kernels whose grid is
visited in several orders."""

import typing as _typing

from effects import _lazy
from effects.dispatch.testing import assert_order as assert_order

if _typing.TYPE_CHECKING:  # the names that `_LATER` imports
    from effects.extensions.kernels.grid_races import check_grid_races as check_grid_races
    from effects.extensions.runs.diff import assert_same_run as assert_same_run
else:  # type checkers would accept every name

    def __getattr__(name: str) -> _typing.Any:  # one of them imports Pallas
        return _lazy.find(__name__, _LATER, name)


_LATER = {
    "assert_same_run": "effects.extensions.runs.diff",
    "check_grid_races": "effects.extensions.kernels.grid_races",
}
"""By name, the module that is imported at the name's first use."""

__all__ = ["assert_order", "assert_same_run", "check_grid_races"]
