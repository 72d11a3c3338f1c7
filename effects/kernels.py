"""Pallas kernels that print, log, check and call Python."""

from effects import _later

with _later.required_by("effects.kernels"):
    from effects.extensions.kernels.api import pallas_call as pallas_call
    from effects.extensions.kernels.grid_races import check_grid_races as check_grid_races

__all__ = [
    "check_grid_races",
    "pallas_call",
]
