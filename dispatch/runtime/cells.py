"""Cells of IPython, and so of notebooks: a cell ends when its effects are visible, and shows their failures.

A notebook that is executed by a program keeps only output from before the end of the cell.
"""

from __future__ import annotations

import sys
from typing import Any

from effects._jax import ipython_shell, take_stack
from effects.dispatch.runtime.runtime import effects_barrier, runtime
from effects.lowering.native_module import native


def follow_cells() -> None:
    """Has each cell from the present one on end with a barrier, where IPython runs. There, and in tests with our
    plugin, an error that is raised after a call has returned shows the line of that call."""
    if (shell := ipython_shell()) is not None:
        cells = _Cells(shell)
        if sys.displayhook is shell.display_trap.hook:
            sys.displayhook = cells.display
        shell.display_trap.hook = cells.display
        shell.showtraceback = cells.show_error
        shell.events.register("post_run_cell", cells.end)
    if shell is not None or "effects_pytest" in sys.modules:
        native.keep_stacks(take_stack)


class _Cells:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._display, self._show_error = shell.display_trap.hook, shell.showtraceback

    def display(self, value: Any) -> None:
        """Shows the value of an expression, below the lines of the cell's programs; not if they have failed."""
        runtime.waiting.for_thread()
        if not runtime.failures.names(runtime.streams.for_plain().thread):
            self._display(value)

    def show_error(self, *args: Any, **kwargs: Any) -> None:
        """Shows an exception, below the lines of the cell's programs; at once if it is an interrupt."""
        if not isinstance(sys.exception(), KeyboardInterrupt):
            runtime.waiting.for_thread()
        self._show_error(*args, **kwargs)

    def end(self, result: Any) -> None:
        """Called when the code of a cell has run. `result`: what IPython makes of the cell."""
        raised = result.error_before_exec, result.error_in_exec
        if KeyboardInterrupt in map(type, raised):
            return
        try:
            effects_barrier()
        except BaseException as error:  # the cell keeps an interrupt, too
            for failure in (error, *getattr(error, "exceptions", ())):
                failure.__traceback__ = self._lines_of_cell(failure.__traceback__)
            self._shell.showtraceback((type(error), error, error.__traceback__), tb_offset=0)
            if raised == (None, None):
                result.error_in_exec = error

    def _lines_of_cell(self, lines: Any) -> Any:
        """The part of a traceback below the functions of IPython's and ours that run cells and end them."""
        runs = {(code.co_filename, code.co_qualname) for code in (self._shell.run_code.__code__, self.end.__code__)}
        left = lines
        while lines is not None:
            code, lines = lines.tb_frame.f_code, lines.tb_next
            if (code.co_filename, code.co_qualname) in runs:
                left = lines
        return left
