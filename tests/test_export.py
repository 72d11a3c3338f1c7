"""Programs ahead of time and between processes: compiled, exported, pickled; callbacks registered by name."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import pickle
import re
import threading

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import effects as fx
from effects._model.arguments import take_arguments
from effects._model.line import Line
from effects._model.primitive import effect_p
from effects._model.site import Site, site_from
from effects._model.where import where_called
from tests.helpers import ROOT, run_python

FLOAT = jax.ShapeDtypeStruct((), "float32")
X = jnp.arange(3.0)


@fx.register_callback("tests.total")
def total(x, *, record=None):
    return np.float32(x.sum())


@fx.register_callback("tests.double")
def double(x):
    return 2 * x


def _again(exported):
    """What another process would have."""
    return fx.deserialize(bytes(exported.serialize()))


def _shape(text):
    return jax.export.symbolic_shape(text)


# Compiled ahead of time


def test_compiled_with_static_donated_and_named_arguments(lines):
    """A compiled program is called as the user's function is, whatever it was compiled with."""

    @functools.partial(fx.jit, static_argnums=1, static_argnames="word", donate_argnums=0)
    def f(x, k, *, y, word):
        fx.print("{} {} {} {}", x, k, y, word)
        return x * k + y

    compiled = f.lower(X, 2, y=1.0, word="w").compile()
    x = jnp.ones(3)
    shown = []
    assert lines(lambda: shown.append(compiled(x, y=3.0))) == ["[1. 1. 1.] 2 3.0 w"]
    assert shown[0].tolist() == [5, 5, 5]
    assert x.is_deleted()
    with pytest.raises(TypeError, match="pytree"):
        compiled(jnp.ones(3))
    with pytest.raises(TypeError):
        compiled(jnp.ones(4), y=3.0)
    assert lines(compiled, jnp.zeros(3), y=0.0) == ["[0. 0. 0.] 2 0.0 w"]  # a call that fails leaves nothing open


def test_compiled_in_another_thread(lines):
    """A program compiled in one thread and called in several: each thread's own order."""

    def f(n, k):
        jax.lax.fori_loop(0, n, lambda i, _: fx.print("{}: {}", k, i), None)

    compiled = fx.jit(f).lower(1, 1).compile()

    def call():
        threads = [threading.Thread(target=compiled, args=(20, k)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    shown = lines(call)
    for k in range(3):
        assert [line for line in shown if line.startswith(f"{k}:")] == [f"{k}: {i}" for i in range(20)]


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

    exported = _again(fx.export(f)(X))
    with pytest.raises(fx.EffectError, match=r"`tests.double` returned an array of float32\[3\]") as caught:
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
    for program in (exported, _again(exported)):
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
print(program.call(jnp.arange(3.0), 2, k=1.0)["c"])
fx.effects_barrier()
try:
    jax.jit(program.call)(jnp.arange(3.0), 2, k=1.0)
except fx.MissingTokenRule as error:
    print(error)
"""
    data = fx.export(_program)(X, 2, k=FLOAT).serialize()
    done = _run_with(code, data)
    assert done.returncode == 0, done.stderr
    first, *loop = PROGRAM_LINES
    lines = done.stdout.splitlines()
    assert lines.pop().startswith("The exported program `_program`, which has effects, is part of a program that plain")
    lines.remove("7.0")  # of the process itself: anywhere between
    of_x = "total of [0. 1. 2.]"
    assert lines == [first, "step i=0", of_x, loop[0], "step i=1", of_x, loop[1]]


def _run_with(code, data):
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program")
        with open(path, "wb") as file:
            file.write(data)
        return run_python(code.replace("sys.argv[1]", repr(path)))


def test_missing_callback_is_named_when_the_program_is_read():
    """A process that has not registered a callback is told so before anything runs."""
    data = fx.export(_program)(X, 2, k=FLOAT).serialize()
    done = _run_with("import effects as fx, sys\nfx.deserialize(open(sys.argv[1], 'rb').read())", data)
    assert done.returncode != 0
    assert "`_program` calls back functions that are not registered here: 'tests.total'" in done.stderr


@pytest.mark.parametrize("read", [lambda program: program, _again], ids=["exported", "read"])
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
    assert lines(_again(fx.export(outer)(1.0)).call, 1.0) == expected
    assert lines(lambda: [inner.call(x) for x in (1.0, 2.0)]) == ["in 1.0", "out", "in 2.0", "out"]
    with jax.disable_jit():
        assert lines(outer, 1.0) == expected


def test_program_with_an_effect_of_an_unknown_kind():
    """A description that no effect of this process reads is refused, with its kind and those that are known."""
    with fx.capture(suppress=True) as records:
        fx.jit(lambda: fx.print("hi"))()
    with pytest.raises(ValueError, match="described by 'unheard-of'.* knows those described by event, function, line"):
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

    exported = _again(fx.export(inner)(0))

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
    done = _run_with(code.replace("CLASH", "False"), data)
    assert done.stdout.splitlines() == [repr(effect), "says 1"], done.stderr
    done = _run_with(code.replace("CLASH", "True"), data)
    assert "The name 'test-travels' is taken" in done.stderr


def test_unordered_effects_of_an_exported_program(lines):
    """Unordered effects happen as often as they stand there, and the ordered ones keep their order."""

    def f(x):
        for _ in range(2):
            fx.print("aside {}", x, ordered=False)
        fx.print("first")

    exported = _again(fx.export(f)(1))
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
    assert lines(_again(exported).call, 2) == ["2 5 w"]


def test_arguments_read_elsewhere_are_what_they_were(lines):
    """Named tuples, keys that are no strings, scalars, key data and special numbers read back as they are."""
    Point = collections.namedtuple("Point", "x y")

    def f(x, key):
        fx.print("{} {}", Point(x, [None, {2: x, 3: True}]), collections.OrderedDict(b=x, a=np.float16(0.5)))
        fx.print("{} {} {}", key, float("nan"), 1j)

    shown = lines(fx.jit(f), 1, jax.random.key(3))
    text = fx.export(f)(1, jax.random.key(3)).serialize()
    code = "import effects as fx, jax, sys\nfx.deserialize(open(sys.argv[1], 'rb').read()).call(1, jax.random.key(3))"
    assert _run_with(code, text).stdout.splitlines() == shown


# Symbolic shapes


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
    for program in (exported, _again(exported)):
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
    done = _run_with(code, fx.export(f)(jax.ShapeDtypeStruct((b, 2), "float32")).serialize())
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
    assert lines(_again(outer).call, jnp.ones(2)) == expected
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


def test_readme_example_prints_what_it_says():
    """The README's example of an exported program prints exactly what stands below it."""
    blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    program = next(i for i, code in enumerate(blocks) if "fx.deserialize" in code)
    done = run_python(blocks[program])
    assert done.stdout == blocks[program + 1], done.stderr


# What cannot be exported


def test_callback_without_a_name_cannot_leave():
    """The error names the function, the user's line and the remedy; for exports and for pickled executables."""

    def anonymous(x):
        pass

    def f(x):
        jax.lax.fori_loop(0, 2, lambda i, _: fx.callback(anonymous, None, x), None)

    with pytest.raises(ValueError, match=r"`.*anonymous` at .*register_callback") as caught:
        fx.export(f)(1)
    assert f"{__file__}:" in str(caught.value)
    with pytest.raises(pickle.PicklingError, match=r"`.*anonymous` at .*register_callback") as caught:
        serialize_executable.serialize(fx.jit(f).lower(1).compile())
    assert f"{__file__}:" in str(caught.value)


REFUSED = {
    "platform": (
        lambda: fx.export(lambda x: fx.print("{}", x), platforms=("cpu", "tpu"))(1),
        NotImplementedError,
        "cannot be exported for tpu",
    ),
    "native": (
        lambda: fx.export(lambda x: fx.print("{}", x), platforms=("tpu",))(1),
        NotImplementedError,
        "native handlers",
    ),
    "node": (
        lambda: fx.export(lambda x: fx.print("{}", collections.defaultdict(int, a=x)))(1),
        ValueError,
        "print at .*given a `defaultdict`",
    ),
    "reference": (
        lambda: fx.export(lambda r: fx.print("{}", r))(jax.new_ref(1)),
        NotImplementedError,
        "takes a mutable reference",
    ),
    "derivative": (
        lambda: jax.grad(fx.export(lambda x: (fx.print("{}", x), x)[1])(1.0).call)(1.0),
        fx.NotDifferentiable,
        "derivative of the exported program",
    ),
    "serialized derivative": (
        lambda: fx.export(lambda x: fx.print("{}", x))(1.0).serialize(vjp_order=1),
        NotImplementedError,
        "derivative of the exported program",
    ),
    "vmap": (
        lambda: jax.vmap(fx.export(lambda x: fx.print("{}", x))(1.0).call)(X),
        NotImplementedError,
        "Batching rule for 'exported_program' not implemented",
    ),
    "jax.jit": (
        lambda: jax.jit(fx.export(lambda x: fx.print("{}", x))(1.0).call)(1.0),
        fx.MissingTokenRule,
        "with `fx.jit`",
    ),
    "arguments": (
        lambda: fx.export(lambda x: fx.print("{}", x))(1.0).call(1.0, 2.0),
        ValueError,
        "was called with .* was expected",
    ),
    "shape": (
        lambda: fx.export(lambda x: fx.print("{}", x))(X).call(X[1:]),
        ValueError,
        r"args\[0\].shape\[0\]",
    ),
    "jax.export": (
        lambda: jax.export.export(fx.jit(lambda x: fx.print("{}", x)))(1.0),
        NotImplementedError,
        "Write `fx.export`",
    ),
    "other data": (lambda: fx.deserialize(b"nothing"), ValueError, "was given something else"),
    "other version": (
        lambda: fx.deserialize(b"token-effects program 999\n"),
        ValueError,
        "was given another version of it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_or_called_is_said(name):
    """What JAX's export cannot do with effects is an error that says so."""
    program, type_, text = REFUSED[name]
    with pytest.raises(type_, match=text):
        program()


# Several devices


def test_exported_for_several_devices(lines):
    """A program that is sharded over four devices prints the whole value once, by itself and inside another."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d"))
    x = jnp.arange(4.0)

    def f(x):
        fx.print("x {}", x)
        fx.print("sum {}", fx.callback(total, FLOAT, x))

    exported = _again(fx.export(fx.jit(f, in_shardings=sharding))(x))
    assert exported.nr_devices == 4
    assert len(exported.in_shardings_jax(sharding.mesh)) == 1
    spread = jax.device_put(x, sharding)
    assert lines(exported.call, spread) == ["x [0. 1. 2. 3.]", "sum 6.0"]
    outer = fx.jit(lambda x: (fx.print("before"), exported.call(x))[1])
    assert lines(outer, spread) == ["before", "x [0. 1. 2. 3.]", "sum 6.0"]
    for_one = _again(fx.export(f)(x))
    assert lines(for_one.call, jax.device_put(x, jax.devices()[2])) == ["x [0. 1. 2. 3.]", "sum 6.0"]
    with pytest.raises(NotImplementedError, match="exported for one device.*over 4 devices"):
        for_one.call(spread)


# Pickled executables


def _loaded(compiled):
    payload = pickle.dumps(serialize_executable.serialize(compiled))
    return serialize_executable.deserialize_and_load(*pickle.loads(payload), execution_devices=jax.devices()[:1])


def test_executable_round_trip(lines):
    """JAX's own functions take a compiled program apart and put it together; what comes out is called as the first."""

    @functools.partial(fx.jit, donate_argnums=0)
    def f(x, unused, *, k):
        fx.print("x {} k {:.1f}", x, k)
        y = fx.callback(total, FLOAT, x)
        fx.print("y {}", y)
        return {"y": y}, x + k

    compiled = f.lower(X, 1, k=1.0).compile()
    loaded = _loaded(compiled)
    assert loaded.in_tree == compiled.in_tree and loaded.out_tree == compiled.out_tree
    assert str(loaded.in_avals) == str(compiled.in_avals)
    assert jax.tree.structure(loaded.input_shardings) == jax.tree.structure(compiled.input_shardings)
    assert jax.tree.structure(loaded.out_info) == jax.tree.structure(compiled.out_info)
    for program in (loaded, _loaded(compiled)):
        x = jnp.ones(3)
        assert lines(program, x, 1, k=2.0) == ["x [1. 1. 1.] k 2.0", "y 3.0"]
        assert x.is_deleted()
        with fx.capture(suppress=True):
            y, x = program(jnp.ones(3), 1, k=2.0)
        assert float(y["y"]) == 3.0 and x.tolist() == [3, 3, 3]
    with pytest.raises(TypeError, match="pytree"):
        loaded(X)
    with pytest.raises(RuntimeError, match="was called while another function is traced"):
        jax.jit(lambda: loaded(x, 1, k=2.0))()


def test_executable_without_effects():
    """A program without effects makes the same journey."""
    assert _loaded(fx.jit(lambda x: x + 1).lower(1).compile())(2) == 3


def test_executable_in_another_process():
    """The process that loads it needs no import of ours before, and finds callbacks by name."""

    def f(x):
        fx.print("x {}", x)
        return fx.callback(total, FLOAT, x) + 1

    payload = pickle.dumps(serialize_executable.serialize(fx.jit(f).lower(X).compile()))
    code = """
import pickle, sys
import jax
from jax.experimental import serialize_executable
import jax.numpy as jnp
parts = pickle.load(open(sys.argv[1], "rb"))
loaded = serialize_executable.deserialize_and_load(*parts, execution_devices=jax.devices()[:1])
try:
    loaded(jnp.arange(3.0))
except RuntimeError as error:
    print(type(error).__name__, "register_callback" in str(error))
import effects as fx
fx.register_callback("tests.total")(lambda x: x.sum())
print(loaded(jnp.ones(3)))
"""
    done = _run_with(code, payload)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["4.0", "EffectError True", "x [0. 1. 2.]", "x [1. 1. 1.]"]


def test_failure_of_a_loaded_program_is_its_own():
    """What a callback raises is raised by the call of the loaded program, and later calls know nothing of it."""
    fail = [True]

    @fx.register_callback("tests.fails")
    def fails(x):
        if fail.pop():
            raise ValueError("once")
        fail.append(False)
        return x

    loaded = _loaded(fx.jit(lambda x: fx.callback(fails, FLOAT, x)).lower(1.0).compile())
    exported = _again(fx.export(lambda x: fx.callback(fails, FLOAT, x))(1.0))
    for call in (loaded, exported.call):
        fail[:] = [True]
        with pytest.raises(fx.EffectError, match="`tests.fails`.*once"):
            call(np.float32(1))
        fail[:] = [False]
        assert float(call(np.float32(2))) == 2.0
    with contextlib.redirect_stdout(io.StringIO()):
        fx.effects_barrier()
