"""What a function raises while it is traced comes with the user's frames, as with `jax.jit`."""

from __future__ import annotations

import traceback

import jax
import pytest

import effects as fx

HERE = __file__


@pytest.fixture
def mode(request):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", request.param)
    yield request.param
    jax.config.update("jax_traceback_filtering", before)


def fail(x):
    fx.print("{}", x)
    raise ValueError("while it is traced")


def inner(jit):
    return jit(lambda x: jax.vmap(jit(fail))(x[None]))


CALLS = {
    "call": lambda jit: jit(fail)(1.0),
    "nested": lambda jit: inner(jit)(jax.numpy.float32(1)),
    "lower": lambda jit: jit(fail).lower(1.0),
    "trace": lambda jit: jit(fail).trace(1.0),
    "eval_shape": lambda jit: jit(fail).eval_shape(1.0),
    "arguments": lambda jit: jit(fail)(object()),
}


@pytest.mark.parametrize("mode", ["quiet_remove_frames", "remove_frames", "tracebackhide", "off"], indirect=True)
@pytest.mark.parametrize("call", CALLS)
def test_tracebacks_are_those_of_jax(call, mode):
    """The frames that are shown are the same as with `jax.jit`: ours are hidden where JAX hides its own."""

    def shown(jit):
        with pytest.raises(Exception) as caught:
            CALLS[call](jit)
        frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
        files = [frame.f_code.co_filename for frame in frames if "__tracebackhide__" not in frame.f_locals]
        names = [frame.f_code.co_name for frame in frames if frame.f_code.co_filename == HERE]
        return type(caught.value), names, [file for file in files if file != HERE]

    error, names, others = shown(fx.jit)
    expected_error, expected_names, expected_others = shown(jax.jit)
    assert (error, names) == (expected_error, expected_names)
    if mode != "off":
        assert others == expected_others
