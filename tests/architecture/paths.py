"""Records which of the project's functions are called on the path of a value, in a process that does nothing else.

Run as a script, `python -P paths.py TREE SCENARIO OUT`, which writes a JSON object to OUT. It imports nothing of this
package, so that it measures whichever tree it is given, also one from before this package was written.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

PACKAGES = ("effects", "lowering", "dispatch")

Call = tuple[str, str]
"""A file, relative to the tree, and the qualified name of the function in it."""


class Recorder:
    """Records calls of the project's named functions: those of the calling thread in order, and those of threads that
    start later.

    A comprehension, a generator expression or a lambda is a part of the function that it stands in, and so is not
    counted by itself. This also makes the figures independent of the interpreter, since comprehensions are functions up
    to Python 3.11 only. A generator that continues is counted as a call.
    """

    def __init__(self, tree: str):
        self._tree = os.path.realpath(tree)
        self._files: dict[str, str | None] = {}  # by the name in the code object
        self.caller: list[Call] = []
        self.others: list[Call] = []
        self._caller_waits = threading.Event()

    def file_of(self, name: str) -> str | None:
        """The file's path in the tree, through symbolic links; None if it is not one of the three packages' files."""
        try:
            return self._files[name]
        except KeyError:
            path = os.path.relpath(os.path.realpath(name), self._tree).replace(os.sep, "/")
            found = self._files[name] = path if path.split("/")[0] in PACKAGES else None
            return found

    def _profile_into(self, calls: list[Call], caller_waits: threading.Event | None) -> Any:
        def profile(frame: FrameType, event: str, arg: Any) -> None:
            if event != "call":
                return
            if (file := self.file_of(frame.f_code.co_filename)) is not None:
                name = frame.f_code.co_qualname
                if not name.rpartition(".")[2].startswith("<"):
                    calls.append((file, name))
            elif caller_waits is not None and self._is_wait_of_ours(frame):
                caller_waits.set()

        return profile

    def _is_wait_of_ours(self, frame: FrameType) -> bool:
        """Whether a function of the project's calls one that waits for another thread."""
        is_wait = frame.f_code.co_filename == threading.__file__ and "wait" in frame.f_code.co_name
        return is_wait and frame.f_back is not None and self.file_of(frame.f_back.f_code.co_filename) is not None

    def record(self, run: Callable[[], object]) -> list[Call]:
        """Runs a function. Returns the calls that the calling thread made meanwhile."""
        before = len(self.caller)
        self._caller_waits.clear()
        threading.setprofile(self._profile_into(self.others, None))
        sys.setprofile(self._profile_into(self.caller, self._caller_waits))
        try:
            run()
        finally:
            sys.setprofile(None)
        return self.caller[before:]

    def until_caller_waits(self) -> None:
        """Returns when the calling thread waits in a function of the project's for what this thread is about to do.

        Else the path would depend on which thread is faster. The limit is for a tree that waits in native code: once it
        is over, the caller is taken to wait until it returns.
        """
        self._caller_waits.wait(timeout=3)
        self._caller_waits.set()


def scan_print(recorder: Recorder) -> dict[str, Any]:
    """The first call of a function that prints in a scan, until its lines are there; and a later call."""
    import jax
    import jax.numpy as jnp

    import effects as fx

    def body(total: Any, x: Any) -> Any:
        fx.print("x = {}", x)
        return total + x, None

    class Output(io.StringIO):
        def write(self, text: str) -> int:
            recorder.until_caller_waits()
            return super().write(text)

    function = fx.jit(lambda xs: jax.lax.scan(body, 0.0, xs)[0])
    xs = jax.block_until_ready(jnp.arange(3.0))

    def call() -> None:
        with contextlib.redirect_stdout(Output()) as out:
            function(xs)
            fx.effects_barrier()
        assert out.getvalue() == "x = 0.0\nx = 1.0\nx = 2.0\n"

    first = recorder.record(call)
    drain = list(recorder.others)
    return {"first": first, "again": recorder.record(call), "drain": drain}


def callback_result(recorder: Recorder) -> dict[str, Any]:
    """The first call of a function with a callback whose result it returns, until that is there."""
    import jax
    import jax.numpy as jnp

    import effects as fx

    def double(x: Any) -> Any:
        recorder.until_caller_waits()
        return 2 * x

    function = fx.jit(lambda x: fx.callback(double, jax.ShapeDtypeStruct((), "float32"), x))
    x = jax.block_until_ready(jnp.float32(1.5))
    calls = recorder.record(lambda: jax.block_until_ready(function(x)))
    return {"first": calls, "drain": recorder.others}


def error_in_call(recorder: Recorder) -> dict[str, Any]:
    """A callback for whose result the program waits raises: its call raises."""
    import jax
    import jax.numpy as jnp

    import effects as fx

    def fail(x: Any) -> Any:
        recorder.until_caller_waits()
        raise ValueError("no")

    function = fx.jit(lambda x: fx.callback(fail, jax.ShapeDtypeStruct((), "float32"), x))
    x = jax.block_until_ready(jnp.float32(1.5))

    def call() -> None:
        try:
            function(x)
        except fx.EffectError:
            return
        raise AssertionError("the call has raised no error")

    return {"first": recorder.record(call), "drain": recorder.others}


def error_at_barrier(recorder: Recorder) -> dict[str, Any]:
    """A callback without a result raises: the next barrier raises."""
    import jax
    import jax.numpy as jnp

    import effects as fx

    def fail(x: Any) -> None:
        recorder.until_caller_waits()
        raise ValueError("no")

    function = fx.jit(lambda x: fx.callback(fail, None, x))
    x = jax.block_until_ready(jnp.float32(1.5))

    def call() -> None:
        function(x)
        try:
            fx.effects_barrier()
        except fx.EffectError:
            return
        raise AssertionError("the barrier has raised no error")

    return {"first": recorder.record(call), "drain": recorder.others}


def walks(recorder: Recorder) -> dict[str, Any]:
    """Who reads the equations of a program's outermost jaxpr while it is called first, and who traces a jaxpr anew.

    The program has what makes a pass look: its last effect is a record outside of loops, its scan has a constant, and
    a handler of custom calls is registered. A function of JAX's own core that is handed the jaxpr reads it on behalf of
    whoever called it.
    """
    import jax
    import jax.numpy as jnp
    from jax._src import core
    from jaxlib.cpu import _lapack

    import effects as fx

    _lapack.initialize()
    fx.register_custom_call("cholesky", _lapack.registrations()["lapack_spotrf_ffi"])
    readers: list[Call] = []
    tracers: list[Call] = []

    def program(xs: Any, scale: Any) -> Any:
        def body(total: Any, x: Any) -> Any:
            fx.print("x = {}", x)
            return total + scale * x, None

        total = jax.lax.scan(body, 0.0, xs)[0]
        fx.print("total = {}", total)
        return total

    def ours(frame: FrameType | None, of_jax: tuple[str, ...]) -> Call | None:
        """The function of the project on whose behalf JAX's own are at work in this frame."""
        while frame is not None and frame.f_code.co_filename.endswith(of_jax):
            frame = frame.f_back
        if frame is None or (file := recorder.file_of(frame.f_code.co_filename)) is None:
            return None
        return file, frame.f_code.co_qualname

    eqns: Any = core.Jaxpr.__dict__["eqns"]

    def read(jaxpr: Any) -> Any:
        if jaxpr.debug_info.func_name == program.__name__:
            reader = ours(sys._getframe(1), (os.path.join("jax", "_src", "core.py"),))
            if reader is not None:
                readers.append(reader)
        return eqns.__get__(jaxpr)

    of_tracing = tuple(os.path.join("jax", "_src", *path) for path in (("profiler.py",), _PARTIAL_EVAL))

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "trace_to_jaxpr_dynamic" and code.co_filename.endswith(of_tracing[1]):
            tracer = ours(frame, of_tracing)
            if tracer is not None:
                tracers.append(tracer)

    core.Jaxpr.eqns = property(read)  # type: ignore[method-assign]
    sys.setprofile(profile)
    try:
        fx.jit(program)(jnp.arange(3.0), 2.0)
    finally:
        sys.setprofile(None)
        core.Jaxpr.eqns = eqns
    fx.effects_barrier()
    return {"walks": readers, "traces": tracers}


_PARTIAL_EVAL = ("interpreters", "partial_eval.py")

SCENARIOS = {
    scenario.__name__: scenario for scenario in (scan_print, callback_result, error_in_call, error_at_barrier, walks)
}


def main(tree: str, scenario: str, out: str) -> None:
    sys.path.insert(0, tree)
    import effects  # noqa: F401 - first of all, since whatever it imports is no part of a path

    result = SCENARIOS[scenario](Recorder(tree))
    import jax

    with open(out, "w", encoding="utf-8") as file:
        json.dump({**result, "jax": jax.__version__}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
