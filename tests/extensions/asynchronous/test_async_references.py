"""Asynchronous operations from reference to reference."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx

pytestmark = pytest.mark.slow

DEVICES = 4
PERMUTATION = [(i, (i + 1) % DEVICES) for i in range(DEVICES)]
X = jnp.linspace(0.5, 1, 6 * DEVICES).reshape(-1, 3)


def _on_ring(program):
    mesh = jax.make_mesh((DEVICES,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(program, mesh=mesh, in_specs=P("ring"), out_specs=P("ring"))


def _pair(x):
    return jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))


def _send(source, target):
    return fx.ppermute_start(source, target, "ring", PERMUTATION)


def _straight(x):
    source, target = _pair(x)
    future = _send(source, target)
    source[...] = x * x  # it has been sent as it was
    fx.async_done(future)
    return source[...] + target[...]


def _in_turns(x):
    """Each turn goes forth and back between two references."""
    one, other = _pair(x)

    def turn(_, total):
        for source, target in ((one, other), (other, one)):
            future = _send(source, target)
            total = total + source[...] ** 2
            fx.async_done(future)
        return total

    return jax.lax.fori_loop(0, 2, turn, jnp.zeros_like(x))


def _carried(x):
    one, other = _pair(x)

    def turn(future, _):
        fx.async_done(future)
        future = _send(other, one)
        fx.async_done(future)
        one[...] = jnp.sin(one[...])
        return _send(one, other), None

    future, _ = jax.lax.scan(turn, _send(one, other), length=2)
    jax.jit(fx.async_done)(future)
    return other[...]


def _permute(x):
    return jax.lax.ppermute(x, "ring", PERMUTATION)


def _straight_values(x):
    return x * x + _permute(x)


def _in_turns_values(x):
    return jax.lax.fori_loop(0, 4, lambda _, c: (_permute(c[0]), c[1] + c[0] ** 2), (x, jnp.zeros_like(x)))[1]


def _carried_values(x):
    return _permute(jax.lax.fori_loop(0, 2, lambda _, x: jnp.sin(_permute(_permute(x))), x))


@pytest.mark.parametrize(
    ("program", "synchronous"),
    [(_straight, _straight_values), (_in_turns, _in_turns_values), (_carried, _carried_values)],
    ids=["straight", "in turns", "carried"],
)
def test_sent_from_reference_to_reference(program, synchronous):
    """Values, derivatives and lanes are those of the synchronous program."""

    def results(jit, program):
        yield jit(_on_ring(program))(X)
        yield jit(jax.grad(lambda x: jnp.sin(_on_ring(program)(x)).sum()))(X)
        yield jit(lambda x: jax.jvp(_on_ring(program), (x,), (x,))[1])(X)
        yield jit(_on_ring(jax.vmap(program)))(X)

    for got, expected in zip(results(fx.jit, program), results(jax.jit, synchronous), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_copy_of_a_pytree():
    """What is copied is what the references held at the start."""

    @fx.jit
    def f(x):
        sources, targets = zip(_pair(x), _pair(2 * x), strict=True)
        assert fx.async_done(fx.async_update(fx.copy_start(sources, targets))) is None
        return [target[...] for target in targets]

    got = f(jnp.arange(3.0))
    np.testing.assert_array_equal(got, [[0, 1, 2], [0, 2, 4]])


def _read(ref):
    return ref[...]


def _write(ref):
    ref[...] = jnp.zeros(3)


def _add(ref):
    ref[...] += 1


def _print(ref):
    fx.print("{}", ref)


def _in_function(ref):
    return jax.jit(lambda: ref[...])()


def _in_loop(ref):
    return jax.lax.fori_loop(0, 3, lambda _, total: total + ref[...], jnp.zeros(3))


def _in_branch(ref):
    jax.lax.cond(ref.shape[0] < jnp.int32(4), lambda: _add(ref), lambda: None)


def _copied_on(ref):
    fx.async_done(fx.copy_start(ref, jax.new_ref(jnp.zeros(3))))


USES = pytest.mark.parametrize("use", [_read, _write, _add, _print, _in_function, _in_loop, _in_branch, _copied_on])


def _line(text):
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


@USES
@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap, jax.grad], ids=["jit", "vmap", "grad"])
def test_target_is_used_under_way(use, transform):
    """The error says the lines of the start and the done, and that of the use."""
    if use is _in_branch and transform is jax.vmap:
        pytest.skip("JAX gives no lanes to branches that use references")
    if use is _write and transform is jax.grad and jax.__version_info__ < (0, 11):
        pytest.skip("JAX 0.10 fails to differentiate a write without a tangent")

    def f(x):
        source, target = jax.new_ref(jnp.ones(3)), jax.new_ref(jnp.zeros(3) + x)
        future = fx.copy_start(source, target)  # the start of a copy
        use(target)
        fx.async_done(future)  # the done of a copy
        return target[...].sum()

    x = jnp.ones(2) if transform is jax.vmap else 1.0
    with pytest.raises(ValueError, match="is used at") as caught:
        fx.jit(transform(f))(x)
    start, done = _line("# the start of " + "a copy"), _line("# the done of " + "a copy")
    assert f"start of `copy` at {__file__}:{start} and its done at {__file__}:{done} " in str(caught.value)
    used = int(re.search(rf"is used at {__file__}:(\d+)", str(caught.value)).group(1))
    assert used not in (start, done)


@USES
def test_target_is_used_ahead_and_behind(use):
    """Ahead of the start and behind the done it is a reference like others, and so is the source at any time."""

    @fx.jit
    def f():
        source, target = jax.new_ref(jnp.ones(3)), jax.new_ref(jnp.zeros(3))
        use(target)
        future = fx.copy_start(source, target)
        use(source)
        fx.async_done(future)
        copied = target[...]
        use(target)
        return copied

    np.testing.assert_array_equal(f(), np.ones(3))


def test_target_is_used_in_the_turn_that_starts():
    """The future of one turn is done in the next, so the target is written when this turn ends."""

    def f(x):
        source, target = _pair(x)

        def turn(_, future):
            fx.async_done(future)
            future = fx.copy_start(source, target)
            source[...] += target[...]
            return future

        fx.async_done(jax.lax.fori_loop(0, 3, turn, fx.copy_start(source, target)))

    with pytest.raises(ValueError, match="is used at"):
        fx.jit(f)(jnp.ones(3))


def test_branches_use_it_when_it_is_done():
    """A branch that ends the copy may use the target, although it stands ahead of the done in another branch."""

    @fx.jit
    def f(x):
        source, target = _pair(x)
        future = fx.copy_start(source, target)

        def one(future):
            fx.async_done(future)
            target[...] += 1

        def other(future):
            target_is_written = fx.async_done(future)
            assert target_is_written is None

        jax.lax.cond(x[0] > 0, one, other, future)
        return target[...]

    np.testing.assert_array_equal(f(jnp.ones(2)), [2, 2])
    np.testing.assert_array_equal(f(-jnp.ones(2)), [-1, -1])


def test_what_is_refused():
    """A reference sent to itself, values in the place of references, parts of them, and other types."""

    def refuse(error, match, start):
        def f():
            return start(jax.new_ref(jnp.zeros(3)), jax.new_ref(jnp.zeros(3)))

        with pytest.raises(error, match=match):
            fx.jit(f)()

    refuse(ValueError, "was given one reference of type .* twice", lambda one, other: fx.copy_start(one, one))
    refuse(ValueError, "twice", lambda one, other: fx.copy_start((one, other), (other, one)))
    refuse(TypeError, "as a reference", lambda one, other: fx.copy_start(one[...], other))
    refuse(TypeError, "in the same structure", lambda one, other: fx.copy_start(one, (other,)))
    refuse(TypeError, "in the same structure", lambda one, other: fx.copy_start(one, jax.new_ref(jnp.zeros(2))))

    refuse(TypeError, "in the same structure", lambda one, other: fx.copy_start(one.at[0], other))
    slot = "writes whole ones. Make a reference for each slot"
    refuse(TypeError, slot, lambda one, other: fx.copy_start(one.at[0:2], other.at[1:3]))

    def send_to_itself(x):
        ref = jax.new_ref(x)
        fx.async_done(_send(ref, ref))
        return ref[...]

    with pytest.raises(ValueError, match="twice"):
        fx.jit(_on_ring(send_to_itself))(X)


def test_loop_cannot_carry_a_future_that_is_written_elsewhere():
    """A loop's turns all have one structure, of which the target is part."""

    def f(x):
        one, other = _pair(x)

        def turn(_, future):
            fx.async_done(future)
            return fx.copy_start(other, one)

        fx.async_done(jax.lax.fori_loop(0, 3, turn, fx.copy_start(one, other)))

    for jit in (fx.jit, jax.jit):
        with pytest.raises(TypeError, match="All turns of a loop write to the same references: unroll it"):
            jit(f)(jnp.ones(3))


def test_copy_of_a_part():
    """The start reads what is given, a part of a reference too, and any slot in a loop."""

    @fx.jit
    def f(x):
        buffer, target = jax.new_ref(x), jax.new_ref(jnp.zeros(x.shape[1:]))

        def turn(i, total):
            future = fx.copy_start(buffer.at[i % 2], target)
            buffer[i % 2] = buffer[(i + 1) % 2]
            fx.async_done(future)
            return total + target[...]

        return jax.lax.fori_loop(0, 3, turn, jnp.zeros(x.shape[1:]))

    np.testing.assert_array_equal(f(jnp.array([[1.0, 2.0], [3.0, 5.0]])), [1 + 3 + 3, 2 + 5 + 5])


def test_slots_of_a_buffer():
    """A slot is sent as a value, while it is read, and what comes is written to the other, by a future that a loop
    carries."""

    def program(x):
        buffer = jax.new_ref(jnp.stack([x, jnp.zeros_like(x)]))

        def turn(i, carry):
            total, future = carry
            total = total + buffer[i % 2] ** 2
            buffer[(i + 1) % 2] = fx.async_done(future)
            return total, fx.ppermute_start(buffer[(i + 1) % 2], "ring", PERMUTATION)

        first = fx.ppermute_start(x, "ring", PERMUTATION)
        total, future = jax.lax.fori_loop(0, 4, turn, (jnp.zeros_like(x), first))
        fx.async_done(future)
        return total

    np.testing.assert_allclose(fx.jit(_on_ring(program))(X), jax.jit(_on_ring(_in_turns_values))(X), rtol=1e-5)


def test_what_is_read_in_between_is_used_in_between():
    """XLA does not move what is computed of a reference ahead of the start."""

    def between(ref, x, done):
        y = jnp.sin(ref[...])
        return y, done()

    _check_that_the_sine_is_between(between)


def test_what_is_written_in_between_is_computed_in_between():
    """XLA does not move what a reference is to hold behind the done."""

    def between(ref, x, done):
        ref[...] = jnp.sin(x)
        return done() + ref[...]

    _check_that_the_sine_is_between(between)


def _check_that_the_sine_is_between(between):
    @fx.jit
    def f(x):
        ref = jax.new_ref(x)
        future = fx.async_start(jnp.cos, x)
        return between(ref, x, lambda: fx.async_done(future))

    entry = f.lower(jnp.ones(1000)).compile().as_text().partition("ENTRY ")[2]
    start, sine, done = (entry.index(text) for text in ("effects_keep", "jit(f)/sin", "effects_take"))
    assert start < sine < done
