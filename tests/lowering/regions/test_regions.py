"""Where regions may be, and in which meshes."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AxisType

import effects as fx
from effects import _jax
from effects._model.device import PLATFORMS
from tests.lowering.regions.meshes import by_device, collectives, mesh_of

P = jax.P
ONE = jax.ShapeDtypeStruct((1,), jnp.int32)


def shows(x):
    fx.print("{} {}", lax.axis_index("x"), x[0])
    return x + 10


# Where regions may be


WHOLE = ["0 0", "1 1", "2 2", "3 3"]
AGAIN = ["0 10", "1 11", "2 12", "3 13"]


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        (lambda f: jax.jit(f), WHOLE),
        (lambda f: jax.checkpoint(f), WHOLE),
        (lambda f: lambda x: f(f(x)), WHOLE + AGAIN),
        (lambda f: lambda x: lax.scan(lambda x, _: (f(x), None), x, length=2)[0], WHOLE + AGAIN),
        (lambda f: lambda x: lax.fori_loop(0, x[1] + 1, lambda _, x: f(x), x), WHOLE + AGAIN),
        (lambda f: lambda x: lax.cond(x[0] == 0, f, lambda x: x, x), WHOLE),
        (lambda f: lambda x: lax.switch(x[2], [lambda x: x, lambda x: x, f], x), WHOLE),
        (lambda f: jax.pmap(lambda x: _shows_one(x), axis_name="x"), WHOLE),
    ],
    ids=["jit", "checkpoint", "twice", "scan", "while", "cond", "switch", "pmap"],
)
@pytest.mark.parametrize("check_vma", [True, False])
def test_region_inside(around, expected, check_vma, lines):
    f = around(by_device(shows, check_vma=check_vma))
    assert lines(fx.jit(f), jnp.arange(4)) == expected


def _shows_one(x):
    fx.print("{} {}", lax.axis_index("x"), x)
    return x


def test_transformations_of_a_region(lines):
    """Effects of the primal, once; lanes in order at each place of each device."""
    f = by_device(lambda x: shows(x) * 1.0)
    loss = lambda x: (f(x) ** 2).sum()  # noqa: E731
    x = jnp.arange(4.0)
    whole = ["0 0.0", "1 1.0", "2 2.0", "3 3.0"]
    for transformed in (jax.grad(loss), jax.value_and_grad(loss), jax.grad(jax.checkpoint(loss))):
        assert lines(fx.jit(transformed), x) == whole
    assert lines(fx.jit(lambda x: jax.jvp(f, (x,), (x,))), x) == whole
    lanes = [f"{n} {n + lane:.1f}" for n in range(4) for lane in (0, 4)]
    assert lines(fx.jit(jax.vmap(f)), jnp.arange(8.0).reshape(2, 4)) == lanes


def test_lanes_on_devices_of_what_a_region_closes_over(lines):
    """With `spmd_axis_name` JAX hands a region the lanes of all devices of what it closes over, which effects refuse.
    Arguments of the region have the lanes of each device."""
    show = lambda *given: jax.shard_map(  # noqa: E731
        lambda y: (fx.print("{device} {} {}", *given, y), y)[1],
        mesh=mesh_of(2, 2), in_specs=P(), out_specs=P(), check_vma=False,
    )  # fmt: skip
    x = jnp.arange(4) + 1.0
    with pytest.raises(NotImplementedError, match="`spmd_axis_name=.'x',.`.* Pass the value to the region as"):
        fx.jit(jax.vmap(lambda x, y: show(x)(y), spmd_axis_name="x"))(x, x)
    shown = [f"{d} one {lane + 1:.1f}" for d in range(4) for lane in range(d // 2 * 2, d // 2 * 2 + 2)]
    assert lines(fx.jit(jax.vmap(show("one"), spmd_axis_name="x")), x) == shown


@pytest.mark.parametrize("check_vma", [True, False])
def test_region_under_a_predicate_that_differs_between_lanes(check_vma, lines):
    """Only the lanes that a Python program would bring there have effects, on each device."""

    def body(x):
        n = lax.axis_index("x")
        x = lax.fori_loop(0, n + 1, lambda i, x: (fx.print("turn {} {} {}", n, i, x[0]), x + 1)[1], x)
        return fx.callback(lambda n, x: (print("asked", n, x[0]), 2 * x)[1], ONE, n, x)

    region = by_device(body, mesh_of(2), check_vma=check_vma)
    x = jnp.arange(6, dtype=jnp.int32).reshape(3, 2)
    branch = fx.jit(jax.vmap(lambda x: lax.cond(x[0] == 2, region, lambda x: x, x)))
    shown = ["turn 0 0 2", "turn 1 0 3", "asked 0 3", "turn 1 1 4", "asked 1 5"]
    assert lines(branch, x) == shown
    loop = fx.jit(jax.vmap(lambda n, x: lax.fori_loop(0, n, lambda i, x: region(x), x)))
    assert lines(loop, jnp.array([0, 1, 2]), x) == [
        *("turn 0 0 2", "turn 0 0 4", "turn 1 0 3", "turn 1 0 5", "asked 0 3", "asked 0 5", "turn 1 1 4", "turn 1 1 6"),
        *("asked 1 5", "asked 1 7", "turn 0 0 10", "turn 1 0 14", "asked 0 11", "turn 1 1 15", "asked 1 16"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("around", ["nothing", "branch", "loop with an asking condition"])
def test_lanes_whose_turns_differ_between_devices(around, check_vma, lines):
    """What a loop carries is the same on all devices to JAX, though not all devices leave it in the same iteration."""

    def lane(turns, same):
        def turn(i, total):
            fx.print("{device} {} of {}", i, turns)
            return total + 1

        if around == "nothing":
            return lax.fori_loop(0, turns, turn, same)
        if around == "branch":
            return lax.cond(turns > 0, lambda same: lax.fori_loop(0, turns, turn, same), lambda same: same, same)

        def goes_on(state):
            fx.print("{device} {} of {}", state[0], turns)
            return state[0] < turns

        return lax.while_loop(goes_on, lambda state: (state[0] + 1, state[1] + 1), (same * 0, same))[1]

    def body(x, same):
        return jax.vmap(lane, (0, None))(lax.rem(x[0] + jnp.arange(3), 4), same)[None]

    f = jax.shard_map(body, mesh=mesh_of(4), in_specs=(P("x"), P()), out_specs=P("x"), check_vma=check_vma)
    turns = [[(device + lane) % 4 for lane in range(3)] for device in range(4)]
    more = around.startswith("loop")  # a condition is asked once more than there are iterations
    shown = [f"{device} {i} of {n}" for i in range(4) for device in range(4) for n in turns[device] if i < n + more]
    assert lines(fx.jit(f), jnp.arange(4), jnp.int32(5)) == shown
    assert fx.jit(f)(jnp.arange(4), jnp.int32(5)).tolist() == [[5 + n for n in of] for of in turns]


def test_meshes(lines):
    """Two axes, regions inside regions, some of the devices, one device, and axes whose sharding types say."""

    def inner(x):
        fx.print("{} {} {}", lax.axis_index("x"), lax.axis_index("y"), x[0])
        return x

    def outer(x):
        return jax.shard_map(inner, in_specs=P("y"), out_specs=P("y"), axis_names={"y"})(x)

    x = jnp.arange(4)
    shown = ["0 0 0", "0 1 1", "1 0 2", "1 1 3"]
    both = jax.shard_map(inner, mesh=mesh_of(2, 2), in_specs=P(("x", "y")), out_specs=P(("x", "y")))
    assert lines(fx.jit(both), x) == shown
    nested = jax.shard_map(outer, mesh=mesh_of(4, 1), in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    assert lines(fx.jit(nested), x) == [f"{n} 0 {n}" for n in range(4)]  # the outer one is over all devices already
    some = mesh_of(2, devices=jax.devices()[2:])
    assert lines(fx.jit(by_device(shows, some)), x) == ["0 0", "1 2"]
    assert lines(fx.jit(by_device(shows, mesh_of(1))), x) == ["0 0"]

    mesh = mesh_of(4, kind=AxisType.Explicit)
    with jax.set_mesh(mesh):
        whole = fx.jit(lambda x: fx.print("all {}", by_device(shows, mesh)(x)))
        assert lines(whole, jax.device_put(x, P("x"))) == [*WHOLE, "all [10 11 12 13]"]


def test_record_says_which_device():
    f = fx.jit(by_device(shows))
    with fx.capture(suppress=True) as records:
        f(jnp.arange(4))
    assert [(record.device, record.text) for record in records] == list(enumerate(WHOLE))


@pytest.mark.parametrize("check_vma", [True, False])
def test_jaxs_callbacks_of_a_region(check_vma, lines):
    """What they return is of the type that JAX gives it."""

    def body(x):
        jax.debug.print("before {}", x[0], ordered=True)
        y = io_callback(lambda x: x, ONE, x, ordered=True)
        jax.debug.print("after {}", y[0], ordered=True)
        return x + y

    shown = [f"{word} {n}" for word in ("before", "after") for n in range(4)]
    assert lines(fx.jit(by_device(body, check_vma=check_vma)), jnp.arange(4, dtype=jnp.int32)) == shown


def test_unordered_effects_all_come(lines):
    def body(x):
        lax.fori_loop(0, 50, lambda i, _: fx.print("{} {}", x[0], i, ordered=False), None)
        return x

    expected = sorted(f"{n} {i}" for n in range(4) for i in range(50))
    assert sorted(lines(fx.jit(by_device(body)), jnp.arange(4))) == expected


@pytest.mark.parametrize("check_vma", [True, False])
def test_no_collective_is_added(check_vma):
    def program(shows):
        def body(x):
            if shows:
                fx.print("{}", x)
                x = x + fx.callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            return x + lax.psum(x, "x")

        def f(x):
            x = by_device(body, check_vma=check_vma)(x)
            if shows:
                fx.print("between")
            return by_device(body, check_vma=check_vma)(x)

        return f

    x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh_of(4), P("x")))

    plain = collectives(jax.jit(program(shows=False)), x)
    assert plain == ["all-reduce"] * 2
    assert collectives(fx.jit(program(shows=True)), x) == plain


# What is refused


def test_regions_in_regions_are_refused_where_both_have_effects():
    def inner(x):
        fx.print("inner {}", x)
        return x

    def outer(x):
        fx.print("outer {}", x)
        return jax.shard_map(inner, in_specs=P("y"), out_specs=P("y"), axis_names={"y"})(x)

    mesh = jax.make_mesh((2, 1, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
    f = jax.shard_map(outer, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    with pytest.raises(fx.MissingTokenRule, match=r"`print` at .*test_regions.py.* inside another one"):
        fx.jit(f)(jnp.arange(4))


@pytest.fixture(params=["setting", "platform"])
def without_native(request, monkeypatch):
    """No handlers publish: because of the setting, or as on a TPU or a GPU of AMD's."""
    if request.param == "platform":
        platform = _jax.platform_of(jax.devices()[0])
        monkeypatch.setitem(PLATFORMS, platform, PLATFORMS[platform]._replace(records="callback"))
        yield
    else:
        with fx.config.override(native=False):
            yield


UNORDERED = {
    "print": lambda x: fx.print("{}", x, ordered=False),
    "callback": lambda x: fx.callback(lambda x: print(int(x)), None, x, ordered=False),
    "JAX's print": lambda x: jax.debug.print("{}", x),
    "both": lambda x: (fx.print("{}", x, ordered=False), jax.debug.print("{}", x)),
}


@pytest.mark.parametrize("show", UNORDERED)
def test_region_without_native_code_has_effects_without_an_order(show, without_native, lines):
    """Those that `jax.jit` runs: of each device in each turn, JAX's own included, beside ordered ones around the
    region; and the barrier waits for them."""

    def body(x):
        lax.fori_loop(0, 2, lambda i, _: UNORDERED[show](x[0] + 10 * i) and None, None)
        return x + 1

    @fx.jit
    def f(x):
        fx.print("ahead")
        x = by_device(body)(x)
        fx.print("behind {}", x)
        return x

    results = []
    shown = lines(lambda: results.append(f(jnp.arange(4))))
    assert results[0].tolist() == [1, 2, 3, 4]
    numbers = [str(n + 10 * i) for n in range(4) for i in range(2)] * (2 if show == "both" else 1)
    assert sorted(shown) == sorted(["ahead", "behind [1 2 3 4]", *numbers])
    assert [line for line in shown if line.isalpha() or " " in line] == ["ahead", "behind [1 2 3 4]"]


def test_region_without_native_code_has_no_order(without_native):
    with pytest.raises(fx.MissingTokenRule, match="without the native module"):
        fx.jit(by_device(shows))(jnp.arange(4))


def test_region_is_lowered_for_no_other_platform_with_an_order(monkeypatch):
    """What was traced where there are handlers is refused when it is lowered where there are none."""
    client = jax.devices()[0].client
    monkeypatch.setattr(_jax.mlir.ModuleContext, "get_backend", lambda *_, **__: client)
    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    region = jax.shard_map(shows, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    x = jax.ShapeDtypeStruct((4,), jnp.int32, sharding=jax.NamedSharding(mesh, P("x")))
    for platform in ("tpu", "rocm"):
        with pytest.raises(fx.MissingTokenRule, match="without the native module"):
            fx.jit(region).trace(x).lower(lowering_platforms=(platform,))
