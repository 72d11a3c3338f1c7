"""What programs run on: the library under test, a library that makes mistakes, and JAX's own ordered effects."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from tests.helpers import build_handlers
from tests.oracle.host import Runner
from tests.oracle.jax_ import stacked, value_of
from tests.oracle.language import DOMAINS, FAR, JAX_FEATURES, MANY, MODULUS

STUCK_AFTER = 120.0  # seconds for one sequence
LOG_CAPACITY = 1 << 13  # words for each program of a kernel's grid: no case needs more


def write_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def as_jax_gives(function: Any, results: Any, args: Any, kwargs: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A function for a callback of JAX's, and the arrays that it is to get.

    JAX takes neither texts nor mutable refs as arguments, gives JAX arrays, and wants results of their types.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    at = [j for j, leaf in enumerate(leaves) if not isinstance(leaf, str)]

    @functools.wraps(function)
    def call(*values: Any) -> Any:
        given = list(leaves)
        for j, value in zip(at, values, strict=True):
            assert isinstance(value, jax.Array), value
            given[j] = np.asarray(value)
        args, kwargs = jax.tree.unflatten(tree, given)
        returned = function(*args, **kwargs)
        if results is None:
            return None
        return jax.tree.map(lambda shape, value: np.asarray(value, shape.dtype), results, returned)

    return call, [value_of(leaves[j]) for j in at]


def jax_print(label: str, operands: tuple[Any, ...], **options: Any) -> None:
    """A print of JAX's own."""
    jax.debug.print(" ".join([label, *["{}"] * len(operands)]), *map(value_of, operands), **options)


def jax_callback(kind: str, function: Any, results: Any, *args: Any, **kwargs: Any) -> Any:
    """A callback of JAX's own, without `ordered=True`."""
    call, values = as_jax_gives(function, results, args, kwargs)
    if kind == "jax_queued":
        return jax.debug.callback(call, *values)
    return io_callback(call, results, *values)


def eager_effect(kind: str, label: str, value: int) -> None:
    """Has an effect of JAX's own outside of programs, with one line. All but two happen at once."""
    happened: list[int] = []

    def call(x: jax.Array) -> np.ndarray:
        write_line(f"{label} {x}")
        happened.append(int(x))
        return np.int32(x + 1)

    def call_only(x: jax.Array) -> None:
        call(x)

    x = jnp.int32(value)
    if kind.startswith("jax_print"):
        jax.debug.print(label + " {}", x, ordered=kind == "jax_print_ordered")
        return
    if kind == "jax_queued":
        jax.debug.callback(call_only, x)
    elif kind == "jax_asked":
        assert int(io_callback(call, jax.ShapeDtypeStruct((), np.int32), x)) == value + 1
    else:  # JAX makes a program of it, and returns when that has begun
        io_callback(call_only, None, x, ordered=kind == "jax_io_ordered")
        return
    assert happened == [value]  # once, and at once


@functools.cache
def library() -> Runner:
    """The library under test."""
    import effects as fx
    from effects import _jax

    def emit(ordered: bool, effect: str = "print") -> Callable[[str, tuple[Any, ...]], None]:
        def emit(label: str, operands: tuple[Any, ...]) -> None:
            fmt = " ".join([label, *["{}"] * len(operands)])
            fx.print(fmt, *operands, ordered=ordered, effect=effect)

        return emit

    def per_shard(label: str, operands: tuple[Any, ...]) -> None:
        fx.print(" ".join([label, "{device} {index}", *["{}"] * len(operands)]), *operands, per_shard=True)

    fx.register_custom_call("oracle.say_line", (build_handlers(), "say_line"))
    fx.register_custom_call("oracle.fold", (build_handlers(), "fold"))
    fx.register_custom_call("oracle.fail", (build_handlers(), "fail_with"))

    apart = fx.register_effect(fx.Effect(DOMAINS["apart"]))
    for kind in ("apart_print", "queued_apart"):
        fx.register_effect(fx.Effect(kind, domain=DOMAINS[kind]))
    with contextlib.redirect_stdout(io.StringIO()) as written:
        for number in range(MANY):
            fx.print("{}", number, effect=fx.register_effect(fx.Effect(f"oracle.far.{number}")))
        fx.effects_barrier(timeout=STUCK_AFTER)
    assert sorted(map(int, written.getvalue().split())) == [*range(MANY)]

    # Lines of other loggers have other filters, so that each case counts from the beginning.
    numbers = itertools.count()
    loggers = [logging.getLogger("oracle")]

    @contextlib.contextmanager
    def in_case() -> Iterator[None]:
        loggers.append(logging.getLogger(f"oracle.case{next(numbers)}"))
        try:
            yield
        finally:
            loggers.pop()

    def filtered(label: str, every: int, first: int, once: bool, when: Any, operands: tuple[Any, ...]) -> None:
        fmt = " ".join([label, *["{}"] * len(operands)])
        asked: dict[str, Any] = {"every": every} if every > 1 else {}
        asked |= {"first": first} if first else {}
        asked |= {"min_seconds": 1e9} if once else {}
        fx.print(fmt, *operands, logger=loggers[-1].name, when=when, **asked)

    def change(how: str) -> None:
        name, *given = how.split()
        sites = fx.sites("oracle/runners.py", effect="print", function="filtered")
        if len(sites):
            getattr(sites, name)(*(int(each) if each.isdecimal() else each for each in given))

    def counts() -> dict[str, tuple[int, int]]:
        of_case = [site for site in fx.sites(effect="print") if site.filter.endswith(f"of {loggers[-1].name}")]
        return {site.title.split(" ", 1)[0]: (site.count, site.shown) for site in of_case}

    def switch(level: int) -> Callable[[str, str, int], None]:
        return lambda label, who, value: loggers[-1].setLevel(level)

    prints = fx.registered_effects()["print"]

    def native(ordered: bool, effect: Any = prints) -> Callable[[str, tuple[Any, ...]], None]:
        def emit(label: str, operands: tuple[Any, ...]) -> None:
            values = stacked([*operands, np.int32(0)])[:-1]
            chosen = effect if ordered else effect.unordered()
            fx.custom_call("oracle.say_line", (), values, label=label, effect=chosen, vmap_method="sequential")

        return emit

    def fail(label: str, fails: Any) -> None:
        call = functools.partial(fx.custom_call, "oracle.fail", scalar, np.int32(0), text=label, effect=prints)
        lax.cond(fails, call, lambda: np.int32(0))

    def log(label: str, level: int, ordered: bool, fields: Mapping[str, Any]) -> None:
        fx.log(label, level=level, ordered=ordered, **fields)

    def shows(label: str, returns: bool = False) -> Callable[[Any], Any]:
        def function(value: Any) -> Any:
            write_line(f"{label} {value}")
            return np.int32(value + 1) if returns else None

        function.__qualname__ = label
        return function

    scalar = jax.ShapeDtypeStruct((), np.int32)

    def show(label: str, value: Any) -> None:
        fx.print("{} {}", label, jnp.asarray(value, np.int32))

    def eager_sync(label: str, who: str, value: int) -> None:
        show(f"{label}.answer", fx.callback(shows(f"{label}.asked", True), scalar, np.array(value, np.int32)))

    def eager_callback(label: str, who: str, value: int) -> None:
        fx.callback(shows(f"{label}.callback"), None, np.array(value, np.int32))

    def eager_of_jax(label: str, who: str, value: int) -> None:
        output: Any = sys.stdout
        line = f"{label}.ahead {value}\n"
        before, seen = output.getvalue().count(line), list[int]()
        show(f"{label}.ahead", value)
        jax.debug.callback(lambda _: seen.append(output.getvalue().count(line)), np.int32(value))
        assert len(seen) == 1, seen  # once, and at once
        assert seen[0] > before or _jax.is_called_back()  # behind what was called ahead of it

    def nested(who: str) -> Any:
        def body(value: Any) -> None:
            lax.fori_loop(0, 2, lambda i, _: fx.print(f"{who}.nested {{}} {{}}", value, i), None)

        return fx.jit(body)

    def nested_sync(who: str) -> Any:
        def body(value: Any) -> Any:
            fx.print(f"{who}.asks {{}}", value)
            answer = fx.callback(shows(f"{who}.asked", True), scalar, value)
            fx.print(f"{who}.got {{}}", answer)
            return answer

        return fx.jit(body)

    def export(jitted: Any, *args: Any) -> Callable[..., Any]:
        return fx.deserialize(fx.export(jitted)(*args).serialize()).call

    nested_by, nested_sync_by = ({who: make(who) for who in "ou"} for make in (nested, nested_sync))
    twice = jax.jit(lambda value: (2 * value + 1) % MODULUS)
    return Runner(
        fx.jit,
        {
            "ordered": emit(True),
            "unordered": emit(False),
            "per_shard": per_shard,
            "native": native(True),
            "native_unordered": native(False),
            "apart": native(True, apart),
            "apart_print": emit(True, effect="apart_print"),
            **{kind: emit(True, effect=DOMAINS[kind]) for kind in FAR},
            "jax_print": jax_print,
            "jax_print_ordered": functools.partial(jax_print, ordered=True),
            "jax_per_shard": functools.partial(jax_print, partitioned=True),
        },
        log,
        lambda label, x: fx.print_grad(f"{label} {{}}", x),
        fail,
        fx.check,
        fx.callback,
        jax_callback,
        functools.partial(fx.effects_barrier, timeout=STUCK_AFTER),
        {
            "print": lambda label, who, value: show(f"{label}.print", value),
            "log": lambda label, who, value: fx.log(f"{label}.log", x=np.array(value, np.int32)),
            "callback": eager_callback,
            "eager_sync": eager_sync,
            "jit": lambda label, who, value: show(f"{label}.jit", twice(np.int32(value))),
            "effects_jit": lambda label, who, value: nested_by[who](np.int32(value)),
            "effects_jit_sync": lambda label, who, value: nested_sync_by[who](np.int32(value)),
            "barrier": lambda label, who, value: fx.effects_barrier(timeout=STUCK_AFTER),
            "eager_of_jax": eager_of_jax,
            "quiet": switch(logging.WARNING),
            "loud": switch(logging.NOTSET),
        },
        fx.EffectError,
        filtered=filtered,
        change=change,
        counts=counts,
        in_case=in_case,
        kernel=functools.partial(fx.pallas_call, interpret=True, log_capacity=LOG_CAPACITY),
        rewriting=functools.partial(_jax.with_kernel_options, logs_simulated=True),
        asynchronous=fx,
        export=export,
    )


def library_after(change: Callable[[list[str]], None]) -> Runner:
    """The library, except that the barrier changes the lines that were written."""
    right = library()

    def barrier(**options: Any) -> None:
        right.barrier(**options)
        written: Any = sys.stdout
        lines = written.getvalue().splitlines()
        change(lines)
        written.seek(0)
        written.truncate()
        written.write("".join(line + "\n" for line in lines))

    return dataclasses.replace(right, barrier=barrier)


def plain_jax() -> Runner:
    """JAX's own ordered effects: slower, and right wherever JAX allows them. It checks the oracle, not the library.

    Everything is a callback that JAX waits for: effects of other kinds have orders of their own.
    """

    def callback(function: Any, results: Any, *args: Any, ordered: bool, **kwargs: Any) -> Any:
        call, values = as_jax_gives(function, results, args, kwargs)
        return io_callback(call, results, *values, ordered=ordered)

    def emit(ordered: bool) -> Callable[[str, tuple[Any, ...]], None]:
        def emit(label: str, operands: tuple[Any, ...]) -> None:
            def write(*operands: Any) -> None:
                write_line(" ".join([label, *map(str, operands)]))

            callback(write, None, *operands, ordered=ordered)

        return emit

    def log(label: str, level: int, ordered: bool, fields: Mapping[str, Any]) -> None:
        def write(**fields: Any) -> None:
            text = " ".join([label, *(f"{name}={value}" for name, value in fields.items())])
            write_line(f"{text} {logging.getLevelName(level)}")

        if level >= logging.INFO:
            callback(write, None, ordered=ordered, **fields)

    prints = {"ordered": emit(True), "unordered": emit(False)}
    return Runner(
        jax.jit,
        prints,
        log,
        lambda label, x: x,
        lambda *_: None,
        lambda *_: None,
        callback,
        jax_callback,
        jax.effects_barrier,
        {},
        RuntimeError,
        JAX_FEATURES,
    )
