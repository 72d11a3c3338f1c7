"""`fx.inspect(f, compare=True)`: a program beside the same program without its effects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects.dispatch.calling.jit import JitFunction, jit
from effects.dispatch.calling.programs import run_traced, trace
from effects.dispatch.runtime.runtime import effects_barrier
from effects.extensions.inspecting.compiled_text import CompiledText, Copy
from effects.extensions.inspecting.figures import (
    ExtraWork,
    Figures,
    SplitFusion,
    extra_copies,
    extra_work,
    split_fusions,
)
from effects.extensions.inspecting.without_records import with_silent_records, without_records
from effects.extensions.runs.values import distance, ulps

# Arrays compared bit by bit.


@dataclasses.dataclass(frozen=True)
class Difference:
    """An array that differs between two programs.

    Attributes:
        path: Which part of the result it is, as in `result['loss'][0]`.
        count: How many of its elements differ. NaNs that differ in their payload or sign alone are not counted.
        size: How many elements it has.
        max_ulp: The greatest difference in units in the last place: how many numbers of the type lie between the two,
            and one. None if the array is not of floats.
        max_absolute: The greatest difference of two numbers.
        nans: How many elements are NaN in one program only. Neither maximum includes them.
        nan_payloads: How many elements are NaN in both, with other bits.
    """

    path: str
    count: int
    size: int
    max_ulp: int | None
    max_absolute: float
    nans: int
    nan_payloads: int

    def __str__(self) -> str:
        said = []
        if self.count:
            most = f"at most {self.max_absolute:.3g}"
            if self.max_ulp is not None:
                most = f"at most {self.max_ulp} ulp, {self.max_absolute:.3g}"
            said.append(f"{self.count} of {self.size} elements, {most}")
        said += [f"{self.nans} of these NaN in one program only"] * bool(self.nans)
        said += [f"the bits of {self.nan_payloads} NaNs"] * bool(self.nan_payloads)
        return f"{self.path}: {', '.join(said)}"


def difference(path: str, first: Any, second: Any) -> Difference | None:
    """How two arrays of the same shape and type differ; None if all of their bits are the same."""
    if jax.dtypes.issubdtype(first.dtype, jax.dtypes.prng_key):
        first, second = jax.random.key_data(first), jax.random.key_data(second)
    first, second = np.asarray(first), np.asarray(second)
    differ = (_bytes(first) != _bytes(second)).any(axis=1)
    if not differ.any():
        return None
    a, b = first.reshape(-1)[differ], second.reshape(-1)[differ]
    if not jax.dtypes.issubdtype(a.dtype, np.inexact):
        return Difference(path, len(a), first.size, None, float(distance(a, b).max(initial=0.0)), 0, 0)
    are_nan, is_nan = np.isnan(a) & np.isnan(b), np.isnan(a) | np.isnan(b)
    a, b, nans = a[~is_nan], b[~is_nan], int((is_nan & ~are_nan).sum())
    apart = ulps(_parts(a), _parts(b))
    assert apart is not None  # of floats there are
    ulp, greatest = int(apart.max(initial=0)), float(distance(a, b).max(initial=0.0))
    return Difference(path, len(a) + nans, first.size, ulp, greatest, nans, int(are_nan.sum()))


def _bytes(x: np.ndarray) -> np.ndarray:
    """The bytes of each element."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.dtype.itemsize)


def _parts(x: np.ndarray) -> np.ndarray:
    """Floats as they are, and of complex numbers both parts."""
    return x.view(np.dtype(f"f{x.dtype.itemsize // 2}")) if x.dtype.kind == "c" else x


MSG_NOT_RUN = (
    "`fx.inspect(..., compare=True)` was given {what}. It runs the function, with its effects and without, to compare "
    "the results. {remedy}"
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `fx.inspect(f, compare=True)` found: a program with its effects, beside the same program without those that
    return nothing.

    Attributes:
        with_effects: Figures of the program with its effects: `fusions` and all `kernels`, `loops`, `calls` of
            handlers, `copies` and their `copied_bytes`, and `temporary_bytes`. Each is counted once in the compiled
            program, also where a loop runs it many times.
        without_effects: The same figures without the effects.
        split_fusions: What is computed in one fusion without the effects and in several with them, or not at all.
        extra_work: What is computed more often with the effects, and what is computed for them alone.
        extra_copies: What is copied with the effects alone.
        differences: The parts of the result that differ by any bit, with their paths.

    Its `str` is the report.

    Example:
        >>> import effects as fx, jax.numpy as jnp
        >>> def f(x):
        ...     y = jnp.sin(x)
        ...     fx.print("y = {}", y)
        ...     return jnp.cos(y)
        >>> comparison = fx.inspect(f, compare=True)(jnp.ones(3))
        >>> comparison.without_effects.kernels
        1
        >>> comparison.differences
        ()
    """

    with_effects: Figures
    without_effects: Figures
    split_fusions: tuple[SplitFusion, ...]
    extra_work: tuple[ExtraWork, ...]
    extra_copies: tuple[Copy, ...]
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        rows = [("", "with effects", "without")]
        for field in dataclasses.fields(Figures):
            counts = (getattr(figures, field.name) for figures in (self.with_effects, self.without_effects))
            first, second = ("unknown" if count is None else str(count) for count in counts)
            rows.append((field.name.replace("_", " "), first, second))
        lines = [
            *(f"{name:16}{first:>14}{second:>14}" for name, first, second in rows),
            *(f"split: {fusion}" for fusion in self.split_fusions),
            *(f"computed for effects: {work}" for work in self.extra_work),
            *(f"copied for effects: {copy}" for copy in self.extra_copies),
            *([f"differs: {one}" for one in self.differences] or ["results: the same, bit by bit"]),
        ]
        return "\n".join(lines)


def comparing(function: Any) -> Callable[..., Comparison]:
    """The function of the same arguments that compares the two programs of a function."""
    if not isinstance(function, JitFunction):
        what = f"{errors.shown(function)}, a function that a library has compiled"
        raise TypeError(MSG_NOT_RUN.format(what=what, remedy="Pass the function as it was before, or one of `fx.jit`."))

    programs = _changed(function, with_silent_records), _changed(function, without_records)

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        if (found := _what_hinders(function, args, kwargs)) is not None:
            raise ValueError(MSG_NOT_RUN.format(what=found[0], remedy=found[1]))
        compiled = [program.lower(*args, **kwargs).compile() for program in programs]
        results = [_run(program, *_own(function, (args, kwargs))) for program in programs]
        return _comparison(compiled, results)

    return compared


def _changed(function: JitFunction[..., Any], change: Callable[[Any], Any]) -> JitFunction[..., Any]:
    """The function whose jaxpr is changed, with the same options."""

    @functools.wraps(function._fun, updated=())
    def changed(*args: Any, **kwargs: Any) -> Any:
        traced = trace(function._without_tokens, args, kwargs)
        return run_traced(traced, args, kwargs, lambda jaxpr, flat: (_jax.evaluate(change(jaxpr), flat), None))[0]

    return jit(changed, **function._options)


def _run(program: JitFunction[..., Any], args: Any, kwargs: Any) -> Any:
    """The results of a program, which is over then: what it fails with is raised."""
    results = jax.block_until_ready(program(*args, **kwargs))
    effects_barrier()
    return results


def _own(function: JitFunction[..., Any], values: Any) -> Any:
    """Arguments of one call, which may be donated."""
    if all(function._options.get(name) is None for name in ("donate_argnums", "donate_argnames")):
        return values
    return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, values)


def _what_hinders(function: JitFunction[..., Any], args: Any, kwargs: Any) -> tuple[str, str] | None:
    """What keeps the function from being run twice, and what to do."""
    if not _jax.runs_now():
        return "arguments where no program runs", "Call it outside of `jax.jit` and `jax.disable_jit`."
    leaves = jax.tree.leaves((args, kwargs))
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        return "a `jax.ShapeDtypeStruct`, which has no values", "Pass an array, say `jnp.ones(shape, dtype)`."
    if any(isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in leaves):
        return "an array that lies in several processes", "Compare the function in one process."
    jaxpr = function.trace(*args, **kwargs).jaxpr
    if any(map(_jax.is_reference_type, jaxpr.in_avals)) or any(map(_jax.is_reference, jaxpr.consts)):
        what = "a function that uses a reference from outside, which each run would write"
        return what, "Pass what the reference holds, and make a reference of that inside."
    return None


def _comparison(compiled: list[Any], results: list[Any]) -> Comparison:
    texts = [CompiledText(program.as_text() or "") for program in compiled]
    figures = [Figures.of(text, program) for text, program in zip(texts, compiled, strict=True)]
    with_paths, _ = jax.tree_util.tree_flatten_with_path(results[0])
    found = [
        difference(f"result{jax.tree_util.keystr(path)}", a, b)
        for (path, a), b in zip(with_paths, jax.tree.leaves(results[1]), strict=True)
    ]
    return Comparison(
        *figures,
        split_fusions=split_fusions(*texts),
        extra_work=extra_work(*texts),
        extra_copies=extra_copies(*texts),
        differences=tuple(one for one in found if one is not None),
    )
