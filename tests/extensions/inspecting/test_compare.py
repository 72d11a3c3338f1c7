"""`fx.inspect(f, compare=True)`: what effects change in a compiled program, and in its results."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

import effects as fx
from effects.extensions.inspecting.compiled_text import CompiledText, size_of
from effects.extensions.inspecting.figures import extra_copies, extra_work, split_fusions

X = jnp.linspace(0.0, 3.0, 64)


def _chain(x):
    y = jnp.sin(x) * 2
    fx.print("y = {}", y)
    return jnp.cos(y) + 1


def _line(function, offset):
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def test_print_in_a_chain():
    """The value that is shown needs a kernel, a call and memory of its own, and its line is named."""
    found = fx.inspect(_chain, compare=True)(X)
    with_effects, without = found.with_effects, found.without_effects
    assert (without.fusions, without.kernels, without.calls, without.loops) == (1, 1, 0, 0)
    assert (with_effects.kernels, with_effects.calls, with_effects.loops) == (2, 1, 0)
    assert with_effects.temporary_bytes - without.temporary_bytes >= X.nbytes
    assert [(str(work.operation.where), work.operation.name, work.times) for work in found.extra_work] == [
        (_line(_chain, 1), "sine", 1),
        (_line(_chain, 1), "multiply", 1),
    ]
    assert found.differences == () and found.split_fusions == ()


def test_report():
    """The text has all figures, the lines, and what became of the results."""
    found = fx.inspect(_chain, compare=True)(X)
    lines = str(found).splitlines()
    assert lines[0].split() == ["with", "effects", "without"]
    assert lines[1].split() == ["fusions", "2", "1"]
    assert f"computed for effects: sine f32[64] at {_line(_chain, 1)}" in lines
    assert lines[-1] == "results: the same, bit by bit"


def test_without_effects_there_is_nothing_to_report():
    """The two programs are one."""
    found = fx.inspect(lambda x: jnp.sin(x) + 1, compare=True)(X)
    assert found.with_effects == found.without_effects
    assert (found.split_fusions, found.extra_work, found.extra_copies, found.differences) == ((), (), (), ())


def test_counts_are_those_of_the_function_itself():
    """What is compared has the kernels, copies and memory of the function as `fx.jit` compiles it."""

    def f(x):
        def step(x, i):
            fx.print("{}: {}", i, x)
            fx.log("step", x=x)
            return jnp.sin(x) * i, None

        return jax.lax.scan(step, _chain(x), jnp.arange(4.0))[0]

    compiled = fx.jit(f).lower(X).compile()
    text = CompiledText(compiled.as_text())
    found = fx.inspect(f, compare=True)(X).with_effects
    opcodes = [step.opcode for step in text.steps()]
    assert found.calls == opcodes.count("custom-call") and found.loops == opcodes.count("while") == 1
    others = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
    steps = sum(opcode not in others for opcode in opcodes)
    assert found.kernels + found.copies + found.calls + found.loops == steps
    assert found.kernels >= found.fusions >= 2
    assert found.temporary_bytes == compiled.memory_analysis().temp_size_in_bytes


def test_copy_in_a_loop():
    """What a loop carries is copied where it is both shown and replaced."""

    def f(x):
        def step(x, i):
            x = x * i + 1
            fx.print("{}", x)
            return x * 0.5 + jnp.sin(x), None

        return jax.lax.scan(step, x, jnp.arange(16.0))[0]

    found = fx.inspect(f, compare=True)(X)
    more = found.with_effects.copied_bytes - found.without_effects.copied_bytes
    assert more == sum(size_of(copy.shape) for copy in found.extra_copies)
    assert any(copy.shape.startswith("f32[64]") for copy in found.extra_copies)


def _everything(called):
    def f(x):
        fx.print("x = {}", x)
        fx.log("event", x=x)
        fx.callback(called.append, None, x)
        fx.callback(called.append, None, x, ordered=False)
        fx.check(x.sum() < 0, "must fail")
        jax.debug.print("jax: {}", x)
        jax.debug.callback(called.append, x)
        jax.experimental.io_callback(called.append, None, x)
        return fx.scan_with_progress(lambda c, i: (c + i, None), x, jnp.arange(3.0))[0]

    return f


def test_nothing_becomes_of_effects_that_are_compared(capsys):
    """No line, no call, no failure of a check, no bar: neither the output nor a handler nor a capture gets anything."""
    called, handled = [], []
    with fx.add_handler(handled.append), fx.capture() as records:
        found = fx.inspect(_everything(called), compare=True)(X)
    assert (called, handled, records) == ([], [], [])
    assert capsys.readouterr() == ("", "")
    assert found.with_effects.calls > found.without_effects.calls == 0
    assert found.differences == ()


def test_effects_with_results_stay_in_both_programs():
    """A callback whose result the values need is called by each of the two."""
    called = []

    def half(x):
        called.append(x)
        return x / 2

    def f(x):
        fx.print("x = {}", x)
        return fx.error_if(fx.callback(half, jax.ShapeDtypeStruct((), "float32"), x), x < 0, "negative") + 1

    found = fx.inspect(f, compare=True)(3.0)
    assert called == [3.0, 3.0]
    assert found.without_effects.calls >= 1 and found.differences == ()
    with pytest.raises(fx.CheckError, match="negative"):
        fx.inspect(f, compare=True)(-3.0)


def test_results_that_differ_are_found():
    """A callback gives the two programs something else: the path says where, and how far apart the values are."""
    values = iter([np.float32(1), np.float32(1.0000001)])

    def f(x):
        y = fx.callback(lambda: next(values), jax.ShapeDtypeStruct((), "float32"))
        return {"same": x, "other": [x, y]}

    (found,) = fx.inspect(f, compare=True)(X).differences
    assert found.path == "result['other'][1]"
    assert (found.count, found.size, found.max_ulp, found.nans) == (1, 1, 1, 0)
    assert found.max_absolute == pytest.approx(1.19e-7, rel=0.01)
    assert str(found) == "result['other'][1]: 1 of 1 elements, at most 1 ulp, 1.19e-07"


def _in_kernel(x):
    def kernel(x_ref, o_ref):
        fx.print("{}", x_ref[...])
        o_ref[...] = x_ref[...] * 2

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def _in_while(x):
    def goes_on(x):
        fx.print("is {} large?", x.sum())
        return x.sum() < 1000

    return jax.lax.while_loop(goes_on, lambda x: x * 2, x)


def _in_branch(x):
    return jax.lax.cond(x.sum() > 0, lambda x: (fx.print("{}", x), x + 1)[1], lambda x: x, x)


def _in_lanes(x):
    return jax.vmap(lambda x: jax.lax.cond(x > 1, lambda: (fx.print("{}", x), x)[1], lambda: -x))(x)


def _in_derivative(x):
    @jax.custom_jvp
    def twice(x):
        fx.print("{}", x)
        return 2 * x

    twice.defjvp(lambda x, dx: (twice(*x), 2 * dx[0]))
    return jax.grad(lambda x: fx.print_grad("{}", jax.checkpoint(lambda x: jnp.sin(twice(x)))(x)).sum())(x)


def _in_function(x):
    inner = jax.jit(lambda x: (jax.debug.print("{}", x), x * 3)[1])
    return inner(inner(x))


def _in_region(x, check_vma=True):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def region(x):
        fx.print("{}", x)
        return x + jax.lax.psum(x, "i")

    return jax.shard_map(region, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)(x)


def _asynchronous(x):
    future = fx.async_start(jnp.sin, x)
    fx.print("{}", x)
    return x + fx.async_done(future)


def _beside_much_else(x):
    square = x[:, None] * x + 10 * jnp.eye(len(x))
    fx.print("{}", square)
    kernel = jnp.ones((1, 1, 3, 3))
    smooth = jax.lax.conv_general_dilated(square[None, None], kernel, (1, 1), "SAME")
    return {
        "smooth": smooth,
        "root": jnp.linalg.cholesky(square),
        "top": jax.lax.top_k(jnp.sort(square), 3),
        "waves": jnp.fft.rfft(x),
        "keys": jax.random.split(jax.random.key(0)),
    }


HOLDERS = [_in_kernel, _in_while, _in_branch, _in_lanes, _in_derivative, _in_function, _in_region, _asynchronous]
HOLDERS += [_beside_much_else, functools.partial(_in_region, check_vma=False)]


@pytest.mark.parametrize("f", HOLDERS)
def test_wherever_effects_are(f, capsys):
    """Effects are left out of whatever holds them, and the results are compared with what the function gives."""
    found = fx.inspect(f, compare=True)(X)
    assert found.with_effects.calls > found.without_effects.calls
    assert found.differences == ()
    fx.effects_barrier()
    assert capsys.readouterr().out == ""


def test_effects_alone_over_several_devices():
    """Whole values and shards of automatically sharded arrays, which the compiled program has on each device."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(X, jax.NamedSharding(mesh, P("i")))

    def f(x):
        fx.print("{}", x)
        fx.print("{}", x, per_shard=True)
        return x * 2

    found = fx.inspect(f, compare=True)(x)
    assert found.with_effects.calls > found.without_effects.calls == 0
    assert found.differences == ()


def test_arguments_as_the_function_takes_them():
    """Static and named arguments, pytrees, and donated arrays, which the caller keeps."""

    @functools.partial(fx.jit, static_argnames="power", donate_argnums=0)
    def f(tree, power, *, scale):
        fx.print("{}", tree)
        return {"y": tree["x"] ** power * scale, "none": None}

    x = X + 0
    found = fx.inspect(f, compare=True)({"x": x}, power=2, scale=jnp.float32(3))
    assert found.differences == ()
    np.testing.assert_array_equal(x, X)
    assert f({"x": x}, power=2, scale=3.0)["y"].shape == X.shape
    fx.effects_barrier()


@pytest.mark.parametrize(
    ("compare", "match"),
    [
        (lambda: fx.inspect(_chain, compare=True)(jax.ShapeDtypeStruct((3,), "float32")), "which has no values"),
        (lambda: jax.jit(lambda x: fx.inspect(_chain, compare=True)(x) and x)(X), "where no program runs"),
        (lambda: fx.inspect(lambda ref: ref[...], compare=True)(jax.new_ref(X)), "a reference from outside"),
        (lambda: (lambda ref: fx.inspect(lambda: ref[...], compare=True)())(jax.new_ref(X)), "a reference from"),
    ],
)
def test_what_cannot_be_compared_is_refused(compare, match):
    """What cannot be run twice is refused, and the message says what to do."""
    with pytest.raises(ValueError, match=match) as caught:
        compare()
    assert str(caught.value).count(". ") == 2


def test_what_a_library_has_compiled_is_refused():
    """Equinox sorts the arguments of its functions by itself."""
    eqx = pytest.importorskip("equinox")
    with pytest.raises(TypeError, match="that a library has compiled"):
        fx.inspect(eqx.filter_jit(_chain), compare=True)


TOGETHER = """HloModule jit_f, is_scheduled=true

FileNames
1 "f.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=2 end_line=2 column=1 end_column=9}
2 {file_name_id=1 function_name_id=1 line=4 end_line=4 column=1 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %sin = f32[8]{0} sine(%p), metadata={op_name="jit(f)/sin" stack_frame_id=1}
  ROOT %cos = f32[8]{0} cosine(%sin), metadata={op_name="jit(f)/cos" stack_frame_id=2}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %copy.1 = f32[8]{0} copy(%x)
  ROOT %both = f32[8]{0} fusion(%copy.1), kind=kLoop, calls=%fused
}
"""
APART = TOGETHER[: TOGETHER.index("%fused")] + (
    """ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %copy.1 = f32[8]{0} copy(%x)
  %first = f32[8]{0} sine(%copy.1), metadata={op_name="jit(f)/sin" stack_frame_id=1}
  %copy.2 = f32[8]{0} copy(%first)
  ROOT %second = f32[8]{0} cosine(%copy.2), metadata={op_name="jit(f)/cos" stack_frame_id=2}
}
"""
)


def test_split_fusion_and_copy_in_a_text():
    """What was one fusion is two kernels with a copy between: nothing is computed twice."""
    apart, together = CompiledText(APART), CompiledText(TOGETHER)
    (split,) = split_fusions(apart, together)
    assert (split.name, split.parts) == ("both", ("first", "second"))
    assert [(operation.name, str(operation.where)) for operation in split.operations] == [
        ("sine", "f.py:2"),
        ("cosine", "f.py:4"),
    ]
    assert str(split) == "%both, which with effects is %first, %second\n    sine at f.py:2\n    cosine at f.py:4"
    assert [copy.name for copy in extra_copies(apart, together)] == ["copy.2"]
    assert extra_work(apart, together) == ()
    assert (split_fusions(together, apart), extra_copies(together, apart)) == ((), ())


@pytest.mark.parametrize(
    ("shape", "size"),
    [("f32[2,3]{1,0}", 24), ("(pred[5]{0}, bf16[])", 7), ("s4[3]", 2), ("f8e4m3fn[4]{0}", 4), ("token[]", 0)],
)
def test_sizes_of_types(shape, size):
    """Bytes of types as XLA writes them."""
    assert size_of(shape) == size
