"""`shard_map` inside `fx.jit`: every device has its own effects, and they come in the order of the program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AxisType

import effects as fx
from tests.helpers import run_python

P = jax.P
ONE = jax.ShapeDtypeStruct((1,), jnp.int32)


def _mesh(*sizes, kind=AxisType.Auto, devices=None):
    return jax.make_mesh(sizes, ("x", "y")[: len(sizes)], axis_types=(kind,) * len(sizes), devices=devices)


def _by_device(body, mesh=None, **kwargs):
    return jax.shard_map(body, mesh=mesh or _mesh(4), in_specs=P("x"), out_specs=P("x"), **kwargs)


def _shows(x):
    fx.print("{} {}", lax.axis_index("x"), x[0])
    return x + 10


# The order: random programs against an interpreter of a few lines


def _statements(inner):
    """What may stand in a region. `inner` is for what stands inside of something."""
    leaf = st.sampled_from([("print",), ("sync",), ("queued",)])
    return st.lists(
        st.one_of(
            leaf,
            st.tuples(st.just("loop"), st.sampled_from([2, "n"]), inner),
            st.tuples(st.just("if"), st.sampled_from([0, 1]), inner),
            st.tuples(st.just("jit"), inner),
        ),
        max_size=4,
    )


DIVERGING = st.tuples(
    _statements(_statements(st.lists(st.just(("print",)), max_size=1))), st.sampled_from([[], [("talk",)]])
).map(lambda parts: [*parts[0], *parts[1]])
TALKING = st.lists(st.sampled_from([("print",), ("sync",), ("talk",)]), max_size=5)  # devices wait for each other


def _programs(statements):
    region = st.tuples(st.just("region"), statements, st.booleans())
    return st.lists(
        st.one_of(region, st.just(("print",)), st.tuples(st.just("scan"), st.lists(region, max_size=2))), max_size=4
    )


def _run(statements, n, x):
    """In a region: as JAX has it."""
    for what, *rest in statements:
        if what == "print":
            fx.print("print {} {}", n, x[0])
        elif what == "queued":
            fx.callback(lambda n, x: print("queued", n, x[0]), None, n, x)
        elif what == "sync":
            x = fx.callback(lambda n, x: (print("sync", n, x[0]), x + 1)[1], ONE, n, x)
        elif what == "talk":
            x = (x + lax.psum(x, "x")) % 97
        elif what == "jit":
            x = jax.jit(lambda n, x, inner=rest[0]: _run(inner, n, x))(n, x)
        elif what == "if":
            x = lax.cond(n % 2 == rest[0], lambda x, inner=rest[1]: _run(inner, n, x), lambda x: x, x)
        else:
            turns = n if rest[0] == "n" else rest[0]
            x = lax.fori_loop(0, turns, lambda _, x, inner=rest[1]: _run(inner, n, x), x)
    return x


def _program(statements, x, by_device=_by_device):
    for what, *rest in statements:
        if what == "print":
            fx.print("all {}", x)
        elif what == "scan":
            x = lax.scan(lambda x, _, inner=rest[0]: (_program(inner, x, by_device), None), x, length=2)[0]
        else:
            body = lambda x, inner=rest[0]: _run(inner, lax.axis_index("x"), x)  # noqa: E731
            x = by_device(body, check_vma=rest[1])(x)
    return x


def _expected(statements, xs, shown):
    """The same as Python would have it."""
    for what, *rest in statements:
        if what == "print":
            shown.append(f"all [{' '.join(f'{x:{max(len(str(y)) for y in xs)}}' for x in xs)}]")
        elif what == "scan":
            for _ in range(2):
                _expected(rest[0], xs, shown)
        else:
            each = [[] for _ in xs]
            _expected_by_device(rest[0], xs, range(len(xs)), each)
            places = sorted((index, n) for n, own in enumerate(each) for index in range(len(own)))
            shown.extend(each[n][index] for index, n in places)


def _expected_by_device(statements, xs, devices, each):
    for what, *rest in statements:
        if what == "talk":
            xs[:] = [(x + sum(xs)) % 97 for x in xs]
        elif what == "jit":
            _expected_by_device(rest[0], xs, devices, each)
        elif what == "if":
            _expected_by_device(rest[1], xs, [n for n in devices if n % 2 == rest[0]], each)
        elif what == "loop":
            for turn in range(len(xs)):
                going = [n for n in devices if turn < (n if rest[0] == "n" else rest[0])]
                _expected_by_device(rest[1], xs, going, each)
        else:
            for n in devices:
                each[n].append(f"{what} {n} {xs[n]}")
                xs[n] += what == "sync"


def _check(statements, lines, size=4, by_device=_by_device):
    outs, xs, shown = [], list(range(size)), []
    f = fx.jit(lambda x: _program(statements, x, by_device))
    seen = lines(lambda: outs.append(f(jnp.arange(size, dtype=jnp.int32))))
    _expected(statements, xs, shown)
    assert seen == shown
    assert outs[0].tolist() == xs


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(statements=_programs(DIVERGING))
def check_diverging(statements, lines):
    _check(statements, lines)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(statements=_programs(TALKING))
def check_talking(statements, lines):
    _check(statements, lines)


def _by_part(body, **kwargs):
    """Two parts, of two copies each."""
    return _in_parts(body, _mesh(2, 2), **kwargs)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(statements=_programs(DIVERGING))
def check_diverging_parts(statements, lines):
    _check(statements, lines, 2, _by_part)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(statements=_programs(TALKING))
def check_talking_parts(statements, lines):
    _check(statements, lines, 2, _by_part)


def in_process_of_its_own(name):
    """Runs a check of this file. Where devices wait for each other, XLA ends a process that does not go on."""
    code = (
        "import sys, pytest\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-o', 'python_functions={name}', {__file__!r}]))\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1]), done.stdout[-3000:]


@pytest.mark.parametrize("check", ["check_diverging", "check_talking", "check_diverging_parts", "check_talking_parts"])
def test_effects_come_by_place_and_device(check):
    in_process_of_its_own(check)


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
    f = around(_by_device(_shows, check_vma=check_vma))
    assert lines(fx.jit(f), jnp.arange(4)) == expected


def _shows_one(x):
    fx.print("{} {}", lax.axis_index("x"), x)
    return x


def test_transformations_of_a_region(lines):
    """Effects of the primal, once; lanes in order at each place of each device."""
    f = _by_device(lambda x: _shows(x) * 1.0)
    loss = lambda x: (f(x) ** 2).sum()  # noqa: E731
    x = jnp.arange(4.0)
    whole = ["0 0.0", "1 1.0", "2 2.0", "3 3.0"]
    for transformed in (jax.grad(loss), jax.value_and_grad(loss), jax.grad(jax.checkpoint(loss))):
        assert lines(fx.jit(transformed), x) == whole
    assert lines(fx.jit(lambda x: jax.jvp(f, (x,), (x,))), x) == whole
    lanes = [f"{n} {n + lane:.1f}" for n in range(4) for lane in (0, 4)]
    assert lines(fx.jit(jax.vmap(f)), jnp.arange(8.0).reshape(2, 4)) == lanes


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("around", ["nothing", "scan", "fori_loop", "remat"])
def test_lanes_on_devices_of_what_a_region_closes_over(lanes, around, lines):
    """With `spmd_axis_name` each device has lanes of its own. JAX hands a region those of all devices here."""

    def f(x, y):
        def body(y):
            def shows(i, y):
                fx.print("{device} {} {}", x, y)
                return y

            if around == "nothing":
                return shows(0, y) + fx.callback(lambda x: x / 2, jax.ShapeDtypeStruct((), jnp.float32), x)
            if around == "scan":
                return lax.scan(lambda y, i: (shows(i, y), None), y, jnp.arange(1))[0]
            return lax.fori_loop(0, 1, shows, y) if around == "fori_loop" else jax.checkpoint(shows)(0, y)

        return jax.shard_map(body, mesh=_mesh(2, 2), in_specs=P(), out_specs=P(), check_vma=False)(y)

    f = fx.jit(jax.vmap(f, spmd_axis_name="x"))
    x = jnp.arange(lanes) + 1.0
    n = lanes // 2  # of each device
    shown = [f"{d} {lane + 1:.1f} {lane + 11:.1f}" for d in range(4) for lane in range(d // 2 * n, (d // 2 + 1) * n)]
    assert lines(f, x, x + 10) == shown
    assert f(x, x + 10).tolist() == (x + 10 + x / 2 * (around == "nothing")).tolist()


@pytest.mark.parametrize("check_vma", [True, False])
def test_region_under_a_predicate_that_differs_between_lanes(check_vma, lines):
    """Only the lanes that a Python program would bring there have effects, on each device."""

    def body(x):
        n = lax.axis_index("x")
        x = lax.fori_loop(0, n + 1, lambda i, x: (fx.print("turn {} {} {}", n, i, x[0]), x + 1)[1], x)
        return fx.callback(lambda n, x: (print("asked", n, x[0]), 2 * x)[1], ONE, n, x)

    region = _by_device(body, _mesh(2), check_vma=check_vma)
    x = jnp.arange(6, dtype=jnp.int32).reshape(3, 2)
    branch = fx.jit(jax.vmap(lambda x: lax.cond(x[0] == 2, region, lambda x: x, x)))
    shown = ["turn 0 0 2", "turn 1 0 3", "asked 0 3", "turn 1 1 4", "asked 1 5"]
    assert lines(branch, x) == shown
    loop = fx.jit(jax.vmap(lambda n, x: lax.fori_loop(0, n, lambda i, x: region(x), x)))
    assert lines(loop, jnp.array([0, 1, 2]), x) == [
        *("turn 0 0 2", "turn 0 0 4", "turn 1 0 3", "turn 1 0 5", "asked 0 3", "asked 0 5", "turn 1 1 4", "turn 1 1 6"),
        *("asked 1 5", "asked 1 7", "turn 0 0 10", "turn 1 0 14", "asked 0 11", "turn 1 1 15", "asked 1 16"),
    ]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("around", ["nothing", "branch", "loop with an asking condition"])
def test_lanes_whose_turns_differ_between_devices(around, check_vma, lines):
    """What a loop carries is the same on all devices to JAX, though not all devices leave it at the same turn."""

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

    f = jax.shard_map(body, mesh=_mesh(4), in_specs=(P("x"), P()), out_specs=P("x"), check_vma=check_vma)
    turns = [[(device + lane) % 4 for lane in range(3)] for device in range(4)]
    more = around.startswith("loop")  # a condition is asked once more than there are turns
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
    both = jax.shard_map(inner, mesh=_mesh(2, 2), in_specs=P(("x", "y")), out_specs=P(("x", "y")))
    assert lines(fx.jit(both), x) == shown
    nested = jax.shard_map(outer, mesh=_mesh(2, 2), in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    assert lines(fx.jit(nested), x) == shown
    for sizes in [(4, 1), (1, 4)]:  # one of the two regions is over all devices already
        nested = jax.shard_map(outer, mesh=_mesh(*sizes), in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
        assert lines(fx.jit(nested), x) == [f"{n // sizes[1]} {n % sizes[1]} {n}" for n in range(4)]
    some = _mesh(2, devices=jax.devices()[2:])
    assert lines(fx.jit(_by_device(_shows, some)), x) == ["0 0", "1 2"]
    assert lines(fx.jit(_by_device(_shows, _mesh(1))), x) == ["0 0"]

    mesh = _mesh(4, kind=AxisType.Explicit)
    with jax.set_mesh(mesh):
        whole = fx.jit(lambda x: fx.print("all {}", _by_device(_shows, mesh)(x)))
        assert lines(whole, jax.device_put(x, P("x"))) == [*WHOLE, "all [10 11 12 13]"]


# Regions over some axes: devices that differ along the others only are copies of each other


def _in_parts(body, mesh, **kwargs):
    """A region over `x` of a mesh with a `y`."""
    specs = {"in_specs": P("x"), "out_specs": P("x"), "axis_names": {"x"}}
    return jax.shard_map(body, mesh=mesh, **specs, **kwargs)


def test_part_calls_a_jitted_function_with_a_constant(lines):
    """A jaxpr inside of the region's has constants."""
    constant = np.arange(3)

    @jax.jit
    def shows(x):
        fx.print("{}", x[0] + constant)
        return x + constant[1]

    program = fx.jit(_in_parts(shows, _mesh(2, 2)))
    assert lines(program, jnp.arange(4)) == ["[0 1 2]", "[2 3 4]"]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("check_vma", [True, False])
def test_parts_have_effects_of_their_own(kind, check_vma, lines):
    """Each part has each of its effects once, in ways of its own; what is unordered and what is waited for too."""

    def body(x):
        n = lax.axis_index("x")
        fx.print("{} {}", n, x)

        def odd(x):
            fx.print("{} odd", n)
            fx.print("{} unordered", n, ordered=False)
            return fx.callback(lambda x: (print("called", x), x + 1)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        x = lax.cond(n == 1, odd, lambda x: x, x)
        return lax.fori_loop(0, n + 1, lambda turn, x: (fx.print("{} turn {}", n, turn), x * 2)[1], x)

    mesh = _mesh(2, 2, kind=kind)
    f = _in_parts(body, mesh, check_vma=check_vma)

    def whole(x):
        fx.print("before {}", x)
        x = f(x)
        fx.print("after {}", x)
        return f(x)

    x = jax.device_put(jnp.arange(4), jax.NamedSharding(mesh, P("x" if kind is AxisType.Explicit else "y")))
    own = lambda a, b, called: [  # noqa: E731
        *(f"0 {a}", f"1 {b}", "0 turn 0", "1 odd", f"called {called}", "1 turn 0", "1 turn 1")
    ]
    expected = ["before [0 1 2 3]", *own("[0 1]", "[2 3]", "[2 3]")]
    expected += ["after [ 0  2 12 16]", *own("[0 2]", "[12 16]", "[12 16]")]
    with jax.set_mesh(mesh):
        whole = fx.jit(whole)
        for _ in range(2):
            shown = lines(whole, x)
            assert shown.count("1 unordered") == 2
            assert [line for line in shown if "unordered" not in line] == expected
        assert whole(x).tolist() == [0, 4, 52, 68]


def test_parts_keep_what_is_sharded_along_the_other_axes(lines):
    """What is printed whole is gathered; a print of something else adds nothing, and devices say who they are."""
    mesh = _mesh(2, 2)

    def program(shows):
        def body(x):
            x = lax.with_sharding_constraint(x * 2, jax.NamedSharding(jax.sharding.get_abstract_mesh(), P(None, "y")))
            if shows:
                fx.print("{}", lax.axis_index("x"))
            x = lax.psum(x, "x")
            if shows:
                fx.print("summed")
            return x

        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"})

    x = jax.device_put(jnp.arange(16.0).reshape(2, 8), jax.NamedSharding(mesh, P("x", "y")))
    assert _collectives(fx.jit(program(shows=True)), x) == _collectives(jax.jit(program(shows=False)), x)
    f = fx.jit(program(shows=True))
    with fx.capture(suppress=True) as records:
        f(x)
    assert [(record.device, record.text) for record in records] == [(0, "0"), (2, "1"), (0, "summed"), (2, "summed")]
    assert f(x).tolist() == jax.jit(program(shows=False))(x).tolist()


def test_parts_around_other_regions(lines):
    """An inner region over the other axes has the effects, or the outer one, under transformations too."""
    mesh = _mesh(2, 2)

    def shows(x):
        fx.print("{}", x.sum())
        return x * 2

    f = _in_parts(shows, mesh)
    x = jnp.arange(8.0).reshape(2, 4)
    assert lines(fx.jit(f), x) == ["6.0", "22.0"]
    assert lines(fx.jit(jax.grad(lambda x: f(x).sum())), x) == ["6.0", "22.0"]
    assert lines(fx.jit(jax.vmap(f)), jnp.stack([x, x + 1])) == ["6.0", "10.0", "22.0", "26.0"]
    twice = lambda x: lax.scan(lambda x, _: (f(x), None), x, length=2)[0]  # noqa: E731
    assert lines(fx.jit(twice), x) == ["6.0", "22.0", "12.0", "44.0"]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("calls", [False, True])
def test_copies_may_have_effects_of_their_own(calls, check_vma, lines):
    """A region inside one that has effects too: each has its place in its device's own order."""

    def inner(x):
        n, m = lax.axis_index("x"), lax.axis_index("y")
        fx.print("inner {} {} {}", n, m, x.sum())
        if calls:
            one = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return fx.callback(lambda n, m, x: (print("called", n, m), x + 1)[1], one, n, m, x)
        lax.cond(m == 1, lambda: fx.print("extra {} {}", n, m), lambda: None)
        return x + 1

    def outer(x):
        n = lax.axis_index("x")
        fx.print("outer {}", n)
        x = jax.shard_map(inner, in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"}, check_vma=check_vma)(
            x
        )
        if calls:
            x = fx.callback(lambda n, x: (print("both", n), x)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), n, x)
        fx.print("after {} {}", n, x[0])
        return x

    f = fx.jit(_in_parts(outer, _mesh(2, 2), check_vma=check_vma))
    pairs = [(n, m) for n in (0, 1) for m in (0, 1)]
    sums = {(0, 0): "1.0", (0, 1): "5.0", (1, 0): "9.0", (1, 1): "13.0"}
    expected = ["outer 0", "outer 1", *(f"inner {n} {m} {sums[n, m]}" for n, m in pairs)]
    after = ["after 0 [1. 2. 3. 4.]", "after 1 [5. 6. 7. 8.]"]
    if calls:
        expected += [*(f"called {n} {m}" for n, m in pairs), "both 0", "both 1", *after]
    else:  # what follows is at the same place of other devices
        expected += [after[0], "extra 0 1", after[1], "extra 1 1"]
    for _ in range(5):
        assert lines(f, jnp.arange(8.0).reshape(2, 4)) == expected


def test_error_in_a_part():
    def body(x):
        return fx.callback(lambda x: 1 / 0, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    f = fx.jit(_in_parts(body, _mesh(2, 2)))
    for _ in range(3):
        with pytest.raises(fx.EffectError, match="ZeroDivisionError"):
            f(jnp.arange(4))
        with pytest.raises(fx.EffectError, match="ZeroDivisionError"):  # the other part's
            fx.effects_barrier()
    fx.effects_barrier()


def test_record_says_which_device():
    f = fx.jit(_by_device(_shows))
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
    assert lines(fx.jit(_by_device(body, check_vma=check_vma)), jnp.arange(4, dtype=jnp.int32)) == shown


def test_unordered_effects_all_come(lines):
    def body(x):
        lax.fori_loop(0, 50, lambda i, _: fx.print("{} {}", x[0], i, ordered=False), None)
        return x

    expected = sorted(f"{n} {i}" for n in range(4) for i in range(50))
    assert sorted(lines(fx.jit(_by_device(body)), jnp.arange(4))) == expected


# What it costs


def _collectives(f, x):
    text = f.lower(x).compile().as_text()
    return sorted(re.findall(r" (all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", text))


@pytest.mark.parametrize("check_vma", [True, False])
def test_no_collective_is_added(check_vma):
    def program(shows):
        def body(x):
            if shows:
                fx.print("{}", x)
                x = x + fx.callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            return x + lax.psum(x, "x")

        def f(x):
            x = _by_device(body, check_vma=check_vma)(x)
            if shows:
                fx.print("between")
            return _by_device(body, check_vma=check_vma)(x)

        return f

    x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(_mesh(4), P("x")))

    plain = _collectives(jax.jit(program(shows=False)), x)
    assert plain == ["all-reduce"] * 2
    assert _collectives(fx.jit(program(shows=True)), x) == plain


# Callbacks that devices wait for


WATCHED = """
import faulthandler, os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
faulthandler.dump_traceback_later(200, exit=True)
import jax, jax.numpy as jnp, effects as fx
from jax import lax, P
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
seen = []

def add(n, x):
    seen.append(int(n))
    return x + 1

def body(x):
    n = lax.axis_index("x")
    def turn(_, x):
        y = fx.callback(add, jax.ShapeDtypeStruct(x.shape, x.dtype), n, x)
        return y + 0 * lax.psum(y, "x")
    return lax.fori_loop(0, 2, turn, x)

f = fx.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
for _ in range(1000):
    x = f(jnp.zeros(8))
assert x.tolist() == [2] * 8, x
assert seen == [*range(8)] * 2000
print("done")
"""


def test_eight_devices_wait_for_callbacks_and_each_other():
    """A thousand times: who goes on after its answer waits in a collective for those that have none yet."""
    done = run_python(WATCHED)
    assert done.stdout == "done\n", done.stderr[-2000:]


OF_THE_WHOLE = """
import faulthandler, os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
faulthandler.dump_traceback_later(200, exit=True)
import jax, jax.numpy as jnp, effects as fx
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, jax.P("x")))
seen = []

def half(total):
    seen.append(float(total))
    return total / 2

@fx.jit
def f(x):
    for _ in range(2):
        x = x * fx.callback(half, jax.ShapeDtypeStruct((), x.dtype), x.sum())
        x = x / x.sum() * 64
    return x

for _ in range(1000):
    f(x)
assert seen == [64.0] * 2000, seen
print("done")
"""


def test_eight_devices_share_an_answer_and_wait_for_each_other():
    """A thousand times: all have the answer of one call, and each goes on to where it waits for the others."""
    done = run_python(OF_THE_WHOLE)
    assert done.stdout == "done\n", done.stderr[-2000:]


def test_collectives_come_after_effects():
    in_process_of_its_own("check_collectives_come_after_effects")


@pytest.mark.parametrize("ending", ["psum", "gather", "keys"])
@pytest.mark.parametrize("check_vma", [True, False])
def check_collectives_come_after_effects(ending, check_vma, lines):
    """The devices that print have no reason of their own to do so before they wait for the devices that call, and
    those wait for what is printed."""

    def body(x):
        n = lax.axis_index("x")
        if ending == "keys":
            x = jax.random.key_data(x)[:, 1].astype(jnp.int32)
        call = lambda x: fx.callback(lambda n, x: (print(n, "called"), x + 1)[1], ONE, n, x)  # noqa: E731
        x = lax.cond(n % 2 == 0, call, lambda x: x, x)
        for turn in range(3):
            fx.print("{} {} {}", n, turn, x[0])
        if ending == "keys":
            return jax.vmap(jax.random.key)(x)
        return lax.psum(x, "x") + x if ending == "psum" else x

    def f(x):
        x = _by_device(body, check_vma=check_vma)(x)
        fx.print("all {}", jax.random.key_data(x)[:, 1] if ending == "keys" else x)

    values = [1, 1, 3, 3]
    own = [[f"{n} {turn} {values[n]}" for turn in range(3)] for n in range(4)]
    for n in (0, 2):
        own[n].insert(0, f"{n} called")
    shown = [each[index] for index in range(4) for each in own if index < len(each)]
    shown.append("all [ 9  9 11 11]" if ending == "psum" else "all [1 1 3 3]")
    f, x = fx.jit(f), jnp.arange(4, dtype=jnp.int32)
    x = jax.vmap(jax.random.key)(x) if ending == "keys" else x
    for _ in range(30):
        assert lines(f, x) == shown


def test_device_that_waits_may_be_what_the_others_wait_for():
    in_process_of_its_own("check_device_that_waits")


def check_device_that_waits(lines):
    """A callback of one device comes after what the others do when it has run. It is not waited for that."""

    def body(x):
        n = lax.axis_index("x")
        x = lax.cond(n == 2, lambda x: fx.callback(lambda x: x + 1, ONE, x), lambda x: x, x)
        total = lax.psum(x, "x")
        fx.print("{} {}", n, total[0])
        return total

    f = fx.jit(jax.shard_map(body, mesh=_mesh(4), in_specs=P("x"), out_specs=P()))
    for _ in range(2):
        assert lines(f, jnp.arange(4, dtype=jnp.int32)) == ["0 7", "1 7", "3 7", "2 7"]


# What is refused


def test_parts_in_parts_are_refused_where_both_have_effects():
    def inner(x):
        fx.print("inner {}", x)
        return x

    def outer(x):
        fx.print("outer {}", x)
        return jax.shard_map(inner, in_specs=P("y"), out_specs=P("y"), axis_names={"y"})(x)

    mesh = jax.make_mesh((2, 1, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
    f = jax.shard_map(outer, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    with pytest.raises(fx.MissingTokenRule, match=r"`print` at .*test_regions.py.* inside another .* `axis_names`"):
        fx.jit(f)(jnp.arange(4))


def test_region_without_native_code_is_refused():
    with fx.config.override(native=False), pytest.raises(fx.MissingTokenRule, match="without the native module"):
        fx.jit(_by_device(_shows))(jnp.arange(4))
