"""Programs that leave the process: exported ones, and the callbacks that they call by name."""

from __future__ import annotations

import collections

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import effects as fx
from tests.extensions.export.common import again, double, run_with, total
from tests.internals import Line, Site, effect_p, site_from, take_arguments, where_called

FLOAT = jax.ShapeDtypeStruct((), "float32")
X = jnp.arange(3.0)


# Registered callbacks


def test_registering_again_and_a_taken_name():
    """A name means one function; the decorator returns it."""
    assert fx.register_callback("tests.double")(double) is double
    with pytest.raises(ValueError, match="The name 'tests.double' is taken"):
        fx.register_callback("tests.double")(lambda x: x)
    with pytest.raises(TypeError, match="was given the name ''"):
        fx.register_callback("")
    with pytest.raises(TypeError, match="was given the name <function"):
        fx.register_callback(double)
    with pytest.raises(TypeError, match="was given 3 as its function"):
        fx.register_callback("tests.three")(3)


def test_registered_callback_is_an_ordinary_one(lines):
    """Inside its own process a registered callback does what others do, under its registered name."""

    def f(x):
        fx.print("{}", fx.callback(total, FLOAT, x, pass_record=True))

    assert lines(fx.jit(f), X) == ["3.0"]
    assert lines(f, X) == ["3.0"]
    with fx.capture() as records:
        jax.block_until_ready(fx.jit(lambda x: fx.callback(double, FLOAT, x))(1.0))
    assert [record.text for record in records] == ["tests.double(1.0)"]


def test_wrong_result_of_a_registered_callback():
    """Results are checked against what was asked for, in a program from elsewhere too."""

    def f(x):
        return fx.callback(double, FLOAT, x)

    exported = again(fx.export(f)(X))
    with pytest.raises(
        fx.EffectError, match=r"`tests.double` at .* returned float32\[3\], and its program expects"
    ) as caught:
        exported.call(X)
    assert f"{__file__}:" in str(caught.value)


# Exported


def _program(x, n, *, k):
    fx.print("x {} k {k:.2f} {}", x, {"a": (x, "s", 1.5)}, k=k)

    def body(i, c):
        fx.log("step", i=i)
        c = c + fx.callback(total, FLOAT, x)
        fx.print("{}: {}", i, c)
        return c

    return {"c": jax.lax.fori_loop(0, n, body, k), "x": x}


PROGRAM_LINES = ["x [0. 1. 2.] k 1.00 {'a': (array([0., 1., 2.], dtype=float32), 's', 1.5)}", "0: 4.0", "1: 7.0"]


def test_exported_program_speaks_of_the_users_arguments(lines):
    """What an exported program says of inputs and outputs has no tokens in it, before and after serialization."""
    exported = fx.export(_program)(X, 2, k=FLOAT)
    plain = jax.export.export(jax.jit(lambda x, n, *, k: {"c": k, "x": x + n}))(X, 2, k=FLOAT)
    for program in (exported, again(exported)):
        assert program.in_tree == plain.in_tree
        assert program.out_tree == plain.out_tree
        assert [(x.shape, x.dtype) for x in program.in_avals] == [(x.shape, x.dtype) for x in plain.in_avals]
        assert [(x.shape, x.dtype) for x in program.out_avals] == [(x.shape, x.dtype) for x in plain.out_avals]
        assert program.platforms == ("cpu",)
        assert program.fun_name == "_program"
        assert "effects_record" in program.mlir_module()
        assert lines(program.call, X, 2, k=1.0) == PROGRAM_LINES
        assert float(program.call(X, 2, k=1.0)["c"]) == 7.0


def test_program_from_another_process():
    """Printed, logged and called back by name in a process that never saw the functions that were exported."""
    code = """
import logging, sys
import jax, jax.numpy as jnp, numpy as np
import effects as fx

@fx.register_callback("tests.total")
def other(x):
    print("total of", x)
    return np.float32(x.sum())

logging.basicConfig(stream=sys.stdout, format="%(message)s")
logging.getLogger("effects").setLevel(logging.INFO)
program = fx.deserialize(open(sys.argv[1], "rb").read())
sys.stdout.write(f"{program.call(jnp.arange(3.0), 2, k=1.0)['c']}\\n")  # in one piece: others write too
fx.effects_barrier()
try:
    jax.jit(program.call)(jnp.arange(3.0), 2, k=1.0)
except fx.MissingTokenRule as error:
    print(error)
"""
    data = fx.export(_program)(X, 2, k=FLOAT).serialize()
    done = run_with(code, data)
    assert done.returncode == 0, done.stderr
    first, *loop = PROGRAM_LINES
    lines = done.stdout.splitlines()
    assert lines.pop().startswith("The exported program `_program`, which has effects, is part of a program that plain")
    lines.remove("7.0")  # of the process itself: anywhere between
    of_x = "total of [0. 1. 2.]"
    assert lines == [first, "step i=0", of_x, loop[0], "step i=1", of_x, loop[1]]


def test_missing_callback_is_named_when_the_program_is_read():
    """A process that has not registered a callback is told so before anything runs."""
    data = fx.export(_program)(X, 2, k=FLOAT).serialize()
    done = run_with("import effects as fx, sys\nfx.deserialize(open(sys.argv[1], 'rb').read())", data)
    assert done.returncode != 0
    assert "`_program` calls back functions that are not registered here: 'tests.total'" in done.stderr


@pytest.mark.parametrize("read", [lambda program: program, again], ids=["exported", "read"])
def test_exported_program_inside_another(lines, read):
    """Called inside `fx.jit`, in loops and branches, its effects take their place among the outer ones."""
    inner = read(fx.export(lambda x: (fx.print("in {}", x), fx.print("out"), x + 1)[2])(1.0))

    def outer(x):
        fx.print("begin")

        def body(i, x):
            x = jax.lax.cond(i % 2 == 0, inner.call, lambda x: x, x)
            fx.print("{} {}", i, x)
            return x

        x = jax.lax.fori_loop(0, 3, body, x)
        inner.call(x)
        fx.print("end")

    expected = ["begin", "in 1.0", "out", "0 2.0", "1 2.0", "in 2.0", "out", "2 3.0", "in 3.0", "out", "end"]
    assert lines(fx.jit(outer), 1.0) == expected
    assert lines(again(fx.export(outer)(1.0)).call, 1.0) == expected
    assert lines(lambda: [inner.call(x) for x in (1.0, 2.0)]) == ["in 1.0", "out", "in 2.0", "out"]
    with jax.disable_jit():
        assert lines(outer, 1.0) == expected


def test_program_with_an_effect_of_an_unknown_kind():
    """A description that no effect of this process reads is refused, with its kind and those that are known."""
    with fx.capture(suppress=True) as records:
        fx.jit(lambda: fx.print("hi"))()
    with pytest.raises(
        ValueError, match="described by 'unheard-of'.* knows those described by .*event, function, .*line"
    ):
        site_from(records[0]._site.description.replace('"line"', '"unheard-of"'))


def test_order_domains_of_an_exported_program(lines):
    """Tokens go in by the names of the order domains, whatever number these have in the program around it."""
    early, late = (fx.register_effect(fx.Effect(f"{name}-exported")) for name in ("a", "z"))

    def say(effect, text, x):
        where = where_called()
        values, leaves, tree = take_arguments((x,), {}, "say", where)
        effect_p.bind(*values, site=Site(effect, Line(text), leaves, tree, where))

    def inner(x):
        fx.print("p {}", x)
        say(late, "z {}", x)

    exported = again(fx.export(inner)(0))

    def outer(n):
        def body(i, _):
            say(early, "a {}", i)
            exported.call(2 * i)
            say(late, "z {}", 2 * i + 1)
            fx.print("p {}", 2 * i + 1)

        jax.lax.fori_loop(0, n, body, None)

    shown = lines(fx.jit(outer), 5)
    for letter, count in (("a", 5), ("p", 10), ("z", 10)):
        assert [line for line in shown if line[0] == letter] == [f"{letter} {i}" for i in range(count)]
    assert sorted(lines(exported.call, 7)) == ["p 7", "z 7"]


def test_effects_of_an_exported_program_are_registered():
    """Effects that a process does not know are registered as the program describes them."""
    code = """
import effects as fx, sys
if CLASH:
    fx.register_effect(fx.Effect("test-travels", domain="program"))
program = fx.deserialize(open(sys.argv[1], "rb").read())
print(repr(fx.registered_effects()["test-travels"]))
program.call(1)
"""
    effect = fx.register_effect(fx.Effect("test-travels"))

    def program(x):
        where = where_called()
        values, leaves, tree = take_arguments((x,), {}, "say", where)
        effect_p.bind(*values, site=Site(effect, Line("says {}"), leaves, tree, where))

    data = fx.export(program)(1).serialize()
    done = run_with(code.replace("CLASH", "False"), data)
    assert done.stdout.splitlines() == [repr(effect), "says 1"], done.stderr
    done = run_with(code.replace("CLASH", "True"), data)
    assert "The name 'test-travels' is taken" in done.stderr


def test_unordered_effects_of_an_exported_program(lines):
    """Unordered effects happen as often as they stand there, and the ordered ones keep their order."""

    def f(x):
        for _ in range(2):
            fx.print("aside {}", x, ordered=False)
        fx.print("first")

    exported = again(fx.export(f)(1))
    shown = lines(fx.jit(lambda x: (exported.call(x), fx.print("last"))[1]), 1)
    assert sorted(shown) == ["aside 1", "aside 1", "first", "last"]
    assert shown.index("first") < shown.index("last")


def test_exported_without_effects_is_as_jax_exports_it(lines):
    """Without effects there is nothing of ours in the way: derivatives, plain `jax.jit`, other platforms."""
    exported = fx.export(jnp.sin, platforms=("cpu", "tpu"))(1.0)
    assert exported.has_vjp()
    again = fx.deserialize(exported.serialize(vjp_order=1))
    assert again.platforms == ("cpu", "tpu")
    assert float(jax.jit(jax.grad(again.call))(0.0)) == 1.0
    assert lines(fx.jit(lambda x: (fx.print("a"), fx.print("{}", again.call(x)))[1]), 0.0) == ["a", "0.0"]


def test_static_arguments_are_part_of_an_exported_program(lines):
    """Static arguments are known when a program is exported, and no arguments of it."""
    f = fx.jit(lambda x, k, *, word: fx.print("{} {} {}", x, k, word), static_argnums=1, static_argnames="word")
    exported = fx.export(f)(1, 5, word="w")
    assert exported.in_tree == jax.tree.structure(((0,), {}))
    assert lines(again(exported).call, 2) == ["2 5 w"]


def test_arguments_read_elsewhere_are_what_they_were(lines):
    """Named tuples, keys that are no strings, scalars, key data and special numbers read back as they are."""
    Point = collections.namedtuple("Point", "x y")

    def f(x, key):
        fx.print("{} {}", Point(x, [None, {2: x, 3: True}]), collections.OrderedDict(b=x, a=np.float16(0.5)))
        fx.print("{} {} {}", key, float("nan"), 1j)

    shown = lines(fx.jit(f), 1, jax.random.key(3))
    text = fx.export(f)(1, jax.random.key(3)).serialize()
    code = "import effects as fx, jax, sys\nfx.deserialize(open(sys.argv[1], 'rb').read()).call(1, jax.random.key(3))"
    assert run_with(code, text).stdout.splitlines() == shown


# Several devices


def test_exported_for_several_devices(lines):
    """A program that is sharded over four devices prints the whole value once, by itself and inside another."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d"))
    x = jnp.arange(4.0)

    def f(x):
        fx.print("x {}", x)
        fx.print("sum {}", fx.callback(total, FLOAT, x))

    exported = again(fx.export(fx.jit(f, in_shardings=sharding))(x))
    assert exported.nr_devices == 4
    assert (
        len(exported.in_shardings_jax(sharding.mesh)) == len(exported.in_shardings_hlo) == len(exported.in_avals) == 1
    )
    assert (
        len(exported.out_shardings_jax(sharding.mesh))
        == len(exported.out_shardings_hlo)
        == len(exported.out_avals)
        == 0
    )
    spread = jax.device_put(x, sharding)
    assert lines(exported.call, spread) == ["x [0. 1. 2. 3.]", "sum 6.0"]
    outer = fx.jit(lambda x: (fx.print("before"), exported.call(x))[1])
    assert lines(outer, spread) == ["before", "x [0. 1. 2. 3.]", "sum 6.0"]
    for_one = again(fx.export(f)(x))
    assert lines(for_one.call, jax.device_put(x, jax.devices()[2])) == ["x [0. 1. 2. 3.]", "sum 6.0"]
    with pytest.raises(NotImplementedError, match="exported for one device.*over 4 devices"):
        for_one.call(spread)


def kernel(x):
    def body(x, y):
        fx.log("hidden", level="debug", x=x[0])
        fx.log("shown", x=x[0])
        y[...] = x[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=2, interpret=True)(x)


def in_lanes(x):
    fx.log("hidden", level="debug", x=x)
    jax.lax.cond(x > 1, lambda: fx.log("shown", x=x), lambda: None)
    return x


def by_shard(x):
    fx.log("hidden", level="debug", x=x, per_shard=True)
    fx.log("shown", x=x)
    return x


@pytest.mark.parametrize("fun", [kernel, jax.vmap(in_lanes), by_shard, lambda x: fx.export(kernel)(x).call(x)])
def test_levels_leave_out_the_first_effect_of_an_exported_program(tmp_path, fun):
    """A process that has lowered nothing knows the sites of all records before the first one comes."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("d",)), PartitionSpec("d"))
    options = {"in_shardings": sharding} if fun is by_shard else {}
    x = jax.device_put(np.arange(4), sharding) if fun is by_shard else np.arange(4)
    for _ in range(2):  # JAX lowers once
        data = fx.export(fx.jit(fun, **options))(x).serialize()
    code = f"""
import logging, sys
import numpy as np, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import effects as fx

logging.getLogger("effects").setLevel("INFO")
x = np.arange(4)
if {fun is by_shard}:
    x = jax.device_put(x, NamedSharding(Mesh(np.array(jax.devices()[:2]), ("d",)), PartitionSpec("d")))
with fx.record({str(tmp_path / "run.fx")!r}):
    fx.deserialize(open(sys.argv[1], "rb").read()).call(x)
    fx.effects_barrier()
"""
    done = run_with(code, data)
    assert not done.returncode, done.stderr
    events = [record.event for record in fx.runs.read(tmp_path / "run.fx")]
    assert events and set(events) == {"shown"}


@pytest.mark.parametrize("is_mapped", [True, False])
def test_lanes_each_call_the_program(is_mapped, lines):
    """Also if no operand differs, as with effects of the function itself; along an axis of tangents once."""
    exported = fx.export(lambda x: (fx.print("x = {}", x), 2 * x)[1])(1.0)

    def f(x, y):
        return exported.call(x if is_mapped else 1.0) + y

    results = []
    nested = jax.vmap(jax.vmap(f, (None, 0)), (0, None))
    for _ in range(2):
        given = lines(lambda: results.append(fx.jit(nested)(X[:2], X)))
        assert given == [f"x = {float(i) if is_mapped else 1.0}" for i in range(2) for _ in range(3)]
    for result in results:
        assert result.tolist() == [[(2.0 * i if is_mapped else 2.0) + j for j in range(3)] for i in range(2)]


def test_axis_of_tangents_is_no_lane(lines):
    exported = fx.export(lambda x: (fx.print("x = {}", x), 2 * x)[1])(1.0)
    assert lines(fx.jit(jax.jacfwd(lambda x: jnp.sin(x) * exported.call(1.0))), X) == ["x = 1.0"]
