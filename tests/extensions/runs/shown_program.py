"""A program that has effects of all kinds, of all types of values, in all formats and contexts, and records itself.

`python -m tests.extensions.runs.shown_program PART PATH RECORDS` runs one part: the run file is `PATH`, and RECORDS is
a file of JSON with what a capture got. `printed` writes nothing to the output but what effects print.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import effects as fx
from effects import _jax

# Values

_INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int2", "int4", "uint2", "uint4"]
_FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
_TYPES = [*_INTEGERS, *_FLOATS, "complex64", "complex128", "bool"]


class Color(enum.IntEnum):
    RED = 3


class Name(str, enum.Enum):  # noqa: UP042 - its text is another than that of a StrEnum
    A = "a"


class Word(str):
    """A string of a class of its own, which shows itself otherwise."""

    def __str__(self) -> str:
        return "a word"


class Point(collections.namedtuple("Point", ["x", "y"])):
    """A pytree with names."""


class Corner(Point):
    """A pytree with names and a text of its own."""

    def __repr__(self) -> str:
        return f"<{self.x} | {self.y}>"


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A pytree that only this process knows."""

    w: Any
    b: Any = 1.5


def _of_type(name: str) -> Iterator[tuple[str, Any]]:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    numbers = [1, 0, 1] if name in ("bool", "int2", "uint2") else [1, 0, 5]
    numbers = [-1.25, 0, 1e3] if name in ("float32", "bfloat16", "float16", "float64") else numbers
    array = np.array(numbers).astype(dtype)
    if dtype.kind == "c":
        array = array + dtype.type(0.5j)
    yield name, jnp.asarray(array[0])
    yield f"{name}[3]", jnp.asarray(array)
    yield f"{name}[0,2]", jnp.zeros((0, 2), dtype)


def values() -> dict[str, Any]:
    """By name, values to show: arrays, which travel in records, and what is known while tracing."""
    shown: dict[str, Any] = {}
    for name in _TYPES:
        shown |= dict(_of_type(name))
    key = jax.random.key(3)
    shown |= {
        "nonfinite": jnp.array([np.nan, np.inf, -np.inf, -0.0]),
        "large": jnp.arange(2000.0).reshape(40, 50),
        "key": key,
        "keys": jax.random.split(key, 2),
        "raw key": jax.random.PRNGKey(0),
        "list": [jnp.int32(1), jnp.ones(2)],
        "tuple": (jnp.float32(0.5), (jnp.bool_(True), None)),
        "dict": {"b": jnp.int32(2), "a": {"c": jnp.ones(2, jnp.bfloat16)}},
        "keys of dict": {1: jnp.int32(2), 0: "zero"},
        "ordered": collections.OrderedDict(z=jnp.int32(1), y=[2.5, "text"]),
        "namedtuple": Point(jnp.float32(1), (2, jnp.int8(3))),
        "empty": {"a": [], "b": (), "c": {}},
        "numpy": np.arange(3, dtype=np.int16),
        "str": "text {}\n\t\u00e9\u4e2d",
        "word": Word("x"),
        "None": None,
        "int": 1234567,
        "negative": -3,
        "True": True,
        "float": 1234.5,
        "nan": float("nan"),
        "inf": float("-inf"),
        "complex": 1 - 2j,
        "bytes": b"\x00\xff",
        "int enum": Color.RED,
        "str enum": Name.A,
        "numpy scalar": np.float16(0.1),
        "numpy bfloat16": ml_dtypes.bfloat16(1.5),
        "numpy string": np.str_("text"),
        "numpy date": np.datetime64("2020-01-02"),
        "dtype": np.dtype("float32"),
        "mesh": P("d", None),
        "function": len,
    }
    return shown


POSITIONAL = [
    *("{}", "{!r}", "{!s}", "{!a}", "{:>12}", "{:<12}|", "{:^12}|", "{:*>12}", "{:,}", "{:08.3f}", "{:.3f}", "{:.2e}"),
    *("{:.3g}", "{:e}", "{:f}", "{:g}", "{:n}", "{:d}", "{:05d}", "{:+}", "{: }", "{:x}", "{:#b}", "{:o}", "{:%}"),
    *("{!r:>30}", "{!s:.3}", "{:stats}", "{0} {0}", "a {0}{{}}\n b", "{0.dtype}", "{0.shape}", "{0[0]}"),
    *("{.T}", "{[x]}", "{0.x}", "{0.w}", "{0[b]}", "{:20}", "{:s}", "{:.10}"),
]
NAMED = ["{x}", "{x!r} {device}", "{x:>10} {device:03d}", "{lane} {x}", "{x:.2f} {lane!r:>8}", "{device}{lane}{x:,}"]


def _fits(print_: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a format fits its arguments, as tracing says and as zeros or the values themselves show."""
    try:
        if print_ is jax.debug.print:  # which does not try its formats
            fmt, value = args
            fmt.format(jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, value))
        jax.make_jaxpr(lambda: print_(*args, **kwargs))()
    except (fx.FormatError, TypeError, ValueError, AttributeError, KeyError, IndexError, AssertionError):
        return False
    return True


# What is printed. Each effect is a line of the output, or several, and nothing else is.


def formats() -> None:
    """Every value in every format, as `fx.print` and `jax.debug.print` have it; and logged."""
    for name, value in values().items():
        leaves, tree = jax.tree.flatten(value)
        is_traced = [isinstance(leaf, jax.Array) for leaf in leaves]
        for print_ in (fx.print, jax.debug.print):
            fitting = [fmt for fmt in POSITIONAL if _fits(print_, fmt, value)]
            named = [fmt for fmt in NAMED if print_ is fx.print and _fits(print_, fmt, x=value)]

            @fx.jit
            def f(
                arrays: list[Any],
                print_: Any = print_,
                fitting: Any = fitting,
                named: Any = named,
                parts: Any = (leaves, is_traced),
                tree: Any = tree,
            ) -> None:
                arrays_left = iter(arrays)
                all_leaves = [next(arrays_left) if is_array else x for x, is_array in zip(*parts, strict=True)]
                x = jax.tree.unflatten(tree, all_leaves)
                for fmt in fitting:
                    print_(fmt, x)
                for fmt in named:
                    print_(fmt, x=x)

            f([leaf for leaf, is_array in zip(leaves, is_traced, strict=True) if is_array])
        if _fits(fx.log, "event", x=value):
            fx.log(name, x=value, level="warning")


SHAPED = [jnp.float32, jnp.bfloat16, jnp.int4, jnp.bool_]


def _show(x: Any, levels: bool = True) -> None:
    """Lines that native code makes and such that Python makes, one after the other."""
    fx.print("{} and {!r}", x, x)
    fx.print("{:>12}", x) if not x.shape else fx.print("{!r:>12}", x)
    fx.log("event", x=x, pair=(x, "text"))
    fx.print("{x} {device} {lane}", x=x)
    if _jax.is_staged():  # else it is JAX's
        jax.debug.print("JAX: {}", x)
    fx.print("{:stats}", x) if x.shape else fx.print("{:+.3f}", x.astype(jnp.float32))
    fx.print("tree {}", {"b": x, "a": [x, None]})
    if levels:
        fx.log("warning", x=x, level="warning")
        fx.print("error {}", x, level="error")
        fx.print("every {:>5}", x.max(), every=2)
        fx.print("when {}", x.max(), when=x.max() > 0)


def contexts() -> None:
    """Some values in all contexts, on eight devices too, with print options of NumPy's other than its own."""
    np.set_printoptions(precision=3, threshold=100, suppress=True)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    for dtype in SHAPED:
        x = jnp.arange(8).astype(dtype)
        _show(x[1])
        fx.jit(_show)(x[:3])
        fx.jit(jax.vmap(_show))(x[:4])
        fx.jit(jax.vmap(jax.vmap(_show), in_axes=1))(x.reshape(4, 2))
        fx.jit(jax.vmap(lambda x: jax.lax.cond(x > 0, lambda: _show(x, False), lambda: fx.print("else {:>3}", x))))(x)
        fx.jit(lambda x: jax.lax.scan(lambda c, x: (_show(x), (c, x))[1], None, x))(x[:3])
        fx.jit(lambda x: jax.lax.fori_loop(0, 2, lambda i, x: (_show(x, False), x)[1], x))(x[2])

        def shard(x: Any) -> Any:
            _show(x[0])
            jax.lax.cond(x[0] > 0, lambda: fx.print("{:>9} {device}", x[0]), lambda: None)
            jax.vmap(lambda x: fx.print("{} {lane} of {device}", x))(jnp.stack([x, x]))
            return x

        def whole(x: Any) -> Any:
            fx.print("before {:>9}", x.astype(jnp.float32).sum())
            x = jax.shard_map(shard, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)
            fx.print("behind {} {device}", x)
            fx.print("shard {}", x, per_shard=True)
            fx.print("shard {index} {}", x, per_shard=True)
            fx.log("shard", x=x, per_shard=True)
            return x

        fx.jit(whole)(jax.device_put(x, jax.NamedSharding(mesh, P("d"))))
    fx.jit(jax.grad(lambda x: fx.print_grad("cotangent {:>12}", x * x) * 3))(2.0)
    fx.print("no {}", "line\nbreak")
    fx.log("break", words="a\nb", array=jnp.arange(200.0))
    fx.print("{} {!r:>30}", jnp.arange(3) / 3, jnp.arange(3) / 3)
    fx.jit(lambda x: jax.debug.print("{} {!r}", x, x))(jnp.arange(3) / 3e5)
    fx.print("")
    fx.effects_barrier()  # the next one has an order of its own
    fx.print("a user's own {}", 1, effect=fx.register_effect(fx.Effect("save")))


# What is seen otherwise than as lines of the output.


def others() -> None:
    """Every other kind of effect, three times in each program."""
    from jax.experimental import pallas as pl

    def received(x: Any, **named: Any) -> None:
        pass

    def given(x: Any) -> Any:
        return x

    def each(i: Any, x: Any) -> Any:
        fx.callback(received, None, x, name=i)
        fx.callback(received, None, x, effect="save")
        y = fx.callback(given, x, x)
        jax.debug.callback(received, x)
        fx.check(x < 0, "a check {:>10} {}", x, i)
        fx.print("print {:>8}", x)
        fx.log("quiet", x=x, level="debug")
        fx.progress(3, "bar").update(i + 1, loss=x)
        future = fx.async_callback(np.sin, jax.ShapeDtypeStruct((), "float32"), x)
        return x + fx.async_done(future) + 0 * y

    fx.register_effect(fx.Effect("save"))
    logging.getLogger("effects").setLevel(logging.DEBUG)
    fx.jit(lambda x: jax.lax.fori_loop(0, 3, each, x))(1.0)
    _met()
    fx.jit(fx.watch(lambda x: jnp.log(x) * 2, mode="log"))(-1.0)
    _met()
    fx.jit(fx.watch(lambda x: jnp.log(x) * 2))(-1.0)
    _met()
    _met(fx.jit(lambda x: fx.error_if(x, x > 0, "an end {:>10}", x)), 1.0)
    _met(fx.jit(lambda x: fx.print("{:{}}", x, jnp.int32(9))), 1)
    _met(fx.jit(lambda x: fx.print("{:.{}}", x, jnp.int32(9))), 1)  # which fails
    _met(fx.jit(lambda x: fx.print("{0.w} {0}", Layer(x))), 1)
    _met(fx.jit(lambda x: fx.log("own", x=[Layer(x)])), 1)
    _met(fx.jit(lambda x: fx.print("{}", {"a": Corner(x, 2)})), 1)

    def kernel(x_ref: Any, o_ref: Any) -> None:
        fx.print("kernel {:>9} {grid}", x_ref[0])
        fx.log("kernel", x=x_ref[0])
        fx.check(x_ref[0] < 0, "kernel {}", x_ref[0])
        o_ref[...] = x_ref[...]

    x = jnp.arange(4.0)
    blocks = pl.BlockSpec((2,), lambda i: (i,))
    f = pl.pallas_call(kernel, x, grid=(2,), in_specs=[blocks], out_specs=blocks, interpret=True)
    with _jax.with_kernel_options(logs_simulated=True):
        fx.jit(f)(x)
        _met()


def _met(f: Any = lambda: None, *args: Any) -> None:
    try:
        f(*args)
        fx.effects_barrier()
    except (fx.EffectError, fx.CheckErrors, fx.EffectErrors):
        pass


PARTS = {"formats": formats, "contexts": contexts, "others": others}


def main(part: str, path: str, records: str) -> None:
    jax.config.update("jax_enable_x64", part == "formats")
    with fx.record(path), fx.capture() as captured:
        PARTS[part]()
        fx.effects_barrier()
    shown = []
    for record in captured:
        try:
            text = record.text
        except Exception:
            text = None
        shown.append([record.effect, text, record.line, record.device, record.lane, record.level])
    with open(records, "w") as file:
        json.dump({"records": shown}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
