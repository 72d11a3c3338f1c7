"""Public names, settings, arguments and options that were removed in this release, and what to write instead.

A row stays for one release. Its key is what a user wrote: `fx.Name`, `fx.config.name`, `fx.function(name=)`,
`effects command --option`, `fx.config.name="value"`.
"""

from __future__ import annotations

import functools
import opcode
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

REMOVED: dict[str, str] = {
    "effects diff --html": "The report is text: write it into a file with `effects diff A B > report.txt`.",
    "effects diff --ulp": "Pass a part of the larger number, `--rtol 1e-6`, or a difference, `--atol 1e-6`.",
    "effects.runs.diff(ulp=)": "Pass a part of the larger number, `rtol=1e-6`, or a difference, `atol=1e-6`.",
    "effects.testing.assert_same_run(ulp=)": (
        "Pass a part of the larger number, `rtol=1e-6`, or a difference, `atol=1e-6`."
    ),
    "effects tail --plot": (
        "Follow the lines, `effects tail --json run.fx`, or draw columns: `fx.runs.read(path).columns(line)`."
    ),
    "effects tail --sites": "Count records by line again and again: `watch effects show --stats run.fx`.",
    "effects trace --profile": "Open the profile of `jax.profiler.trace` in a second window, beside the timeline.",
    "effects trace --summary": "Count records by line, `effects show --stats run.fx`, or look at the timeline.",
    "effects.runs.trace(profile=)": "Leave it out, and open the profile of `jax.profiler.trace` in a second window.",
    "fx.record(keep=)": "Leave it out: a full file keeps its newest records. Give `max_bytes` for all of them.",
    "fx.add_handler(after_error=)": "Record the run with `fx.record`, whose file has what was not carried out.",
    "fx.Comparison": "Read `fx.jit(f).lower(x).compile().as_text()` of the function with its effects and of the one "
    "without.",
    "fx.async_update(partial=)": "Leave it out, and use the result of `fx.async_done`; or start a second callback.",
    "fx.inspect(compare=)": "Read `fx.jit(f).lower(x).compile().as_text()` of the function with its effects and of "
    "the one without.",
    **{
        f"fx.{name}Handler": f"{instead}: docs/how-to/services.md has the lines."
        for name, instead in {
            "Loguru": "Give `fx.add_handler` a function that calls `logger.bind(**fields).log(...)`",
            "Npz": "Use `np.savez(path, **handler.columns(event))` with an `fx.ListHandler`",
            "Parquet": "Give `pyarrow.table(fx.runs.read(path).columns(line))` to `pyarrow.parquet.write_table`",
            "Structlog": "Give `fx.add_handler` a function that calls `log.log(record.level, record.event, **fields)`",
            "TensorBoard": "Give `fx.add_handler` a function that calls `writer.add_scalar(...)` for each field",
            "Wandb": "Give `fx.add_handler` a function that calls `run.log(fields)`",
        }.items()
    },
    "fx.while_loop_with_progress": "Make `bar = fx.progress()` ahead of the loop; its body calls `bar.update(i + 1)`.",
    **dict.fromkeys(
        ("fx.progress(lanes=)", "fx.scan_with_progress(lanes=)", "fx.fori_loop_with_progress(lanes=)"),
        "Leave it out: a bar shows the slowest lane, and each record of the effect `progress` has its `lane`.",
    ),
    **dict.fromkeys(
        ("fx.custom_call(input_layouts=)", "fx.custom_call(output_layouts=)"),
        "Buffers are row-major: give a handler that takes columns `jnp.swapaxes(x, -1, -2)`, and swap what it returns.",
    ),
    "fx.config.cells": "Call a program in a thread of its own where its cell is not to wait for it.",
    "fx.config.dump_signal": (
        "After `fx.config.stall_seconds` in which nothing moves the log says what waits for what, and so does the "
        "error of `fx.effects_barrier(timeout=60)`. Call `faulthandler.register(signal.SIGUSR1)` to see on a signal "
        "where all threads stand."
    ),
    'fx.config.jax_effects="as_written"': "Leave it out, and write `ordered=False` in calls that are not to wait.",
    "fx.config.kernel_log_capacity": "Give the words to the call, `fx.pallas_call(kernel, ..., log_capacity=1024)`.",
    "fx.config.postmortem": (
        "Put `fx.breakpoint(when=x < 0)` ahead of `fx.error_if(x, x < 0, ...)` or `fx.check(x >= 0, ...)`, or behind "
        "the line that the error of `fx.watch` names."
    ),
    "fx.config.static_levels": "Put a Python `if` around a call to keep its effect out of the program.",
    "fx.config.whole_prints": (
        'Write a line as one text, `sys.stdout.write(f"{a} {b}\\n")`, so that no line of an effect comes in between, '
        "or set `fx.config.sync = True`."
    ),
}
"""By removed name, the sentence with the replacement."""

MSG_REMOVED = "`{name}` was removed in token-effects 0.1.0. The changelog lists all that was, under Removed. {instead}"

_F = TypeVar("_F", bound=Callable[..., object])


def message(name: str) -> str | None:
    """The message for a name that was removed; None for any other name."""
    instead = REMOVED.get(name)
    return None if instead is None else MSG_REMOVED.format(name=name, instead=instead)


def missing_name(module: str, name: str) -> Exception:
    """The error for a name that a module of ours does not have. Called by the `__getattr__` of the module."""
    if (text := message(f"fx.{name}")) is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return error_for_asker(text)


def error_for_asker(text: str) -> Exception:
    """The error for a missing name with this message, of the class that shows the message to the importing code.

    `from effects import Name` replaces an AttributeError by an ImportError without its message, and passes an
    ImportError on.
    """
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame = frame.f_back
    is_from_import = frame.f_code.co_code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"]
    return ImportError(text) if is_from_import else AttributeError(text)


def refuse_variables(environ: Iterable[str]) -> None:
    """Raises ValueError if the environment sets a removed setting, as for a wrong value of an existing one."""
    for variable in environ:
        if variable.startswith("EFFECTS_"):
            text = message(f"fx.config.{variable.removeprefix('EFFECTS_').lower()}")
            if text is not None:
                raise ValueError(f"`{variable}` is set in the environment. {text}")


def without_arguments(call: str, *names: str) -> Callable[[_F], _F]:
    """A decorator for a function whose keyword arguments of these names were removed: TypeError if one is given.

    Args:
        call: How users call the function, `fx.inspect`.
        *names: The arguments, each with a row `call(name=)` in `REMOVED`.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def checked(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True  # pytest hides this frame and shows the caller's line
            for name in names:
                if name in kwargs:
                    raise TypeError(message(f"{call}({name}=)"))
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorate
