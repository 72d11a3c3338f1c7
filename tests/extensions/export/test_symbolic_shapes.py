"""Exported programs with dimensions that are known when they are called."""

from __future__ import annotations

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.export.common import again, double, run_with, total

pytestmark = pytest.mark.slow

FLOAT = jax.ShapeDtypeStruct((), "float32")
X = jnp.arange(3.0)


def _shape(text):
    return jax.export.symbolic_shape(text)


def test_symbolic_dimensions_are_found_in_the_records(lines):
    """Each call shows what it was given, in one program for all sizes: operands, results, lanes, several symbols."""

    def f(x, y):
        fx.print("x {} y {}", x, y)
        fx.print("twice {}", fx.callback(double, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
        fx.print("both {}", jnp.concatenate([x, y[0]]).shape[0] + jnp.concatenate([x, y[0]]))
        jax.vmap(lambda x: fx.print("lane {}", x))(x)
        jax.vmap(lambda row: fx.print("sum {}", fx.callback(total, FLOAT, row)))(y)
        jax.lax.fori_loop(0, 2, lambda i, _: fx.print("{} {x}", i, x=x), None)

    b, c = _shape("b, c")
    exported = fx.export(f)(jax.ShapeDtypeStruct((b,), "float32"), jax.ShapeDtypeStruct((2, c), "float32"))
    assert str(exported.in_avals[1].shape) == "(2, c)"
    for program in (exported, again(exported)):
        for x, y in ((np.arange(3), np.ones((2, 2))), (np.ones(1), np.zeros((2, 4))), (np.ones(40), np.ones((2, 1)))):
            args = x.astype(np.float32), y.astype(np.float32)
            assert lines(program.call, *args) == lines(fx.jit(f), *args)


def test_symbolic_dimensions_in_another_process():
    """What is known of the sizes travels in the records, not in the process that exported the program."""
    (b,) = _shape("b")

    def f(x):
        fx.print("x {} n {}", x, x.shape[0] * jnp.ones((), "int32"))
        jax.vmap(lambda x: fx.log("row", x=x))(x)
        return fx.callback(double, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    code = """
import effects as fx, jax.numpy as jnp, sys
fx.register_callback("tests.double")(lambda x: 2 * x)
program = fx.deserialize(open(sys.argv[1], "rb").read())
with fx.capture() as records:
    print([program.call(jnp.ones((n, 2))).tolist() for n in (1, 2)])
    fx.effects_barrier()
print([(record.effect, record.lane) for record in records])
"""
    done = run_with(code, fx.export(f)(jax.ShapeDtypeStruct((b, 2), "float32")).serialize())
    assert done.returncode == 0, done.stderr
    *texts, events = done.stdout.splitlines()
    text = "\n".join(texts)
    assert "x [[1. 1.]] n 1" in text and "[[[2.0, 2.0]], [[2.0, 2.0], [2.0, 2.0]]]" in text
    assert re.findall(r"'(\w+)', \((\d?)", events) == [
        ("print", ""), ("log", "0"), ("callback", ""), ("print", ""), ("log", "0"), ("log", "1"), ("callback", ""),
    ]  # fmt: skip


def test_symbolic_program_called_with_symbols(lines):
    """An exported program of symbolic shapes is part of another one of symbolic shapes."""
    (b,) = _shape("b")
    spec = jax.ShapeDtypeStruct((b,), "float32")
    inner = fx.export(lambda x: (fx.print("in {}", x), 2 * x)[1])(spec)
    outer = fx.export(lambda x: (fx.print("before"), fx.print("after {}", inner.call(x)))[1])(spec)
    expected = ["before", "in [1. 1.]", "after [2. 2.]"]
    assert lines(again(outer).call, jnp.ones(2)) == expected
    assert lines(fx.jit(lambda x: inner.call(jnp.append(x, x))), jnp.ones(1)) == expected[1:2]


def test_columns_of_logs_with_symbolic_shapes():
    """Handlers get the columns of records whose sizes are their own."""
    (b,) = _shape("b")
    program = fx.export(lambda x: fx.log("symbolic", x=x))(jax.ShapeDtypeStruct((b,), "float32"))
    handler = fx.ListHandler()
    token = fx.add_handler(handler, effects="log")
    program.call(X)
    program.call(X)
    fx.effects_barrier()
    fx.remove_handler(token)
    assert handler.columns("symbolic")["x"].tolist() == [[0, 1, 2]] * 2


def test_large_operand_of_symbolic_shape():
    """An operand that travels beside the ring is read too."""
    (b,) = _shape("b")
    program = fx.export(lambda x: fx.callback(total, FLOAT, x))(jax.ShapeDtypeStruct((b,), "float32"))
    assert float(program.call(jnp.ones(2_000_000))) == 2e6
