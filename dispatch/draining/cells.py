"""Cells of IPython, and so of notebooks: a cell ends when its effects are visible, and what they fail with is its own.

A notebook that is executed by a program has in a cell what is written before the cell ends.
"""

from __future__ import annotations

import sys
from typing import Any

from effects._config import config
from effects.dispatch.draining.barrier import effects_barrier


def follow_cells() -> None:
    """Has each cell from the present one on end with a barrier, where IPython runs."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    if shell is not None:
        shell.events.register("post_run_cell", _Cells(shell).end)


class _Cells:
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def end(self, result: Any) -> None:
        """Called when the code of a cell has run. `result`: what IPython makes of the cell."""
        if config.cells == "go_on":
            return
        try:
            effects_barrier()
        except BaseException as error:  # an interrupt, too, is the cell's
            self._shell.showtraceback((type(error), error, error.__traceback__))
            if result.error_before_exec is None and result.error_in_exec is None:
                result.error_in_exec = error
