"""Asynchronous operations in programs for GPUs, lowered where there is none."""

import re

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from effects._model.wire import CustomCallTrait
from tests.extensions.custom_calls.common import STEP
from tests.helpers import build_handlers

pytestmark = pytest.mark.slow

X = jax.ShapeDtypeStruct((2,), jnp.float32)


def lowered(f, *args, platforms=("cuda",), jit=fx.jit):
    return jit(f).trace(*args).lower(lowering_platforms=platforms).as_text()


def calls(text):
    """The handlers that a program calls, in order."""
    return re.findall(r"stablehlo.custom_call @effects_(\w+)", text)


def test_values_of_one_function_stay_in_the_program():
    """Start and done are in one function, branch or body: no value goes to the host."""

    def f(x):
        def turn(i, x):
            return x + fx.async_done(fx.async_start(jnp.sin, x))

        return jax.lax.fori_loop(0, 3, turn, fx.async_done(fx.async_start(lambda x: x + 1, x)))

    text = lowered(f, X)
    assert "stablehlo.sine" in text
    assert not {"keep", "take"} & {*calls(text)}


@pytest.mark.parametrize("way", ["carried", "returned", "chosen", "tied"])
def test_values_whose_ticket_goes_elsewhere_are_kept(way):
    """By calls that take the token and give it back as it was, since a GPU's program counts by itself."""

    def f(x):
        future = fx.async_start(jnp.sin, x)
        if way == "carried":
            future = jax.lax.fori_loop(0, 2, lambda _, f: fx.async_start(jnp.cos, fx.async_done(f)), future)
        elif way == "returned":
            future = jax.jit(lambda x: fx.async_start(jnp.cos, x))(fx.async_done(future))
        elif way == "chosen":
            return jax.lax.cond(x[0] > 0, fx.async_done, lambda f: 2 * fx.async_done(f), future)
        else:
            future = fx.async_update(future)
        return fx.async_done(future)

    text = lowered(f, X)
    assert {"keep", "take"} <= {*calls(text)}
    of_operations = [line for line in text.splitlines() if "@effects_keep" in line or "@effects_take" in line]
    assert of_operations and all("output_operand_aliases" in line for line in of_operations)


def test_callbacks_begin_in_the_stream():
    """Their functions begin from records, and the done is a callback with results."""
    text = lowered(lambda x: fx.async_done(fx.async_callback(lambda x: x, X, x)), X)
    assert calls(text).count("begin") == calls(text).count("call") == 1
    (begin,) = (line for line in text.splitlines() if "@effects_begin" in line)
    assert "output_operand_aliases" in begin


@pytest.mark.parametrize("platforms", [["cuda"], ["cpu", "cuda"]], ids=" and ".join)
def test_exported_programs(platforms):
    """What a loop carries is kept by calls there too. One for both runs here, where no GPU is."""
    identity = fx.register_callback(f"for_gpus.{len(platforms)}")(lambda x: x)

    @fx.jit
    def f(x):
        def turn(_, carry):
            x, function, values = carry
            x = x + fx.async_done(function) + fx.async_done(values)
            return x, fx.async_callback(identity, X, x), fx.async_start(jnp.negative, x)

        first = x, fx.async_callback(identity, X, x), fx.async_start(jnp.negative, x)
        x, function, values = jax.lax.fori_loop(0, 2, turn, first)
        return x + fx.async_done(function) + fx.async_done(values) + fx.async_done(fx.async_start(lambda x: x, x))

    data = fx.export(f, platforms=platforms)(jnp.ones(2)).serialize()
    called = fx.deserialize(data).call
    if "cpu" in platforms:
        assert called(jnp.ones(2)).tolist() == [2.0, 2.0]


def test_collectives_are_jaxs_own():
    """Between devices of a GPU's kind nothing is sent by the host."""
    mesh = jax.sharding.AbstractMesh((4,), ("i",))

    def overlap(x):
        future = fx.ppermute_start(x, "i", [(i, (i + 1) % 4) for i in range(4)])
        y = jnp.sin(x)
        return y + fx.async_done(future)

    f = jax.shard_map(overlap, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"), check_vma=False)
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P("i")))
    text = lowered(f, x)
    assert "collective_permute" in text
    assert not {"post", "keep", "take"} & {*calls(text)}


def needed_for(text, operation):
    """The lines on which the one line with this operation depends, itself among them."""
    lines = {found.group(1): found.group() for found in re.finditer(r"^ *(%\w+)(?::\d+)? = .*", text, re.MULTILINE)}
    (line,) = (line for line in lines.values() if operation in line)
    needed, left = set(), [line]
    while left:
        needed.add(line := left.pop())
        left += [lines[name] for name in re.findall(r"%\w+", line) if name in lines and lines[name] not in needed]
    return needed


@pytest.mark.parametrize("start", ["function", "collective"])
def test_what_is_started_and_what_stands_between_may_run_beside_each_other(start):
    """Neither depends on the other, and each on what is ahead of the start."""
    mesh = jax.sharding.AbstractMesh((4,), ("i",))

    def f(x):
        x = jnp.tanh(x)
        if start == "function":
            future = fx.async_start(jnp.sin, x)
        else:
            future = fx.ppermute_start(x, "i", [(i, (i + 1) % 4) for i in range(4)])
        y = jnp.exp(x)
        return y + fx.async_done(future)

    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P("i")))
    text = lowered(jax.shard_map(f, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"), check_vma=False), x)
    started, between = "sine" if start == "function" else "collective_permute", "exponential"
    for one, other in ((started, between), (between, started)):
        needed = " ".join(needed_for(text, f"stablehlo.{one}"))
        assert "stablehlo.tanh" in needed and f"stablehlo.{other}" not in needed


@pytest.mark.parametrize("platform", ["rocm", "tpu"])
def test_callbacks_are_refused_where_there_are_no_handlers(platform):
    """What is in flight has no place there."""
    with pytest.raises(NotImplementedError, match="they exist for CPUs and NVIDIA's GPUs"):
        lowered(lambda x: fx.async_done(fx.async_callback(lambda x: x, X, x)), X, platforms=(platform,))


def test_custom_calls_hand_the_token_on():
    """The call of a custom call takes the token in place, and counts nothing."""
    fx.register_custom_call("for_gpus.announce", (build_handlers(), "announce"), platform="cuda")
    text = lowered(lambda: fx.custom_call("for_gpus.announce", (), label="", effect=STEP))
    (call,) = (line for line in text.splitlines() if "@effects_custom_call" in line)
    traits = int(re.search(r"traits = (\d+)", call)[1])
    assert traits & CustomCallTrait.HAS_TOKEN and not traits & CustomCallTrait.COUNTS
    assert "output_operand_aliases" in call
