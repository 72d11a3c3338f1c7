"""What `fx.watch` costs a step, and the compiler, beside checkify and `jax_debug_nans`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._devices import run_child
from benchmarks._measure import interleave, per, timed
from benchmarks._ratios import cost

TIMES = 10


def _perceptron(key: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    sizes = (256, 512, 512, 10)
    params = [(jax.random.normal(key, shape) * 0.05, jnp.zeros(shape[1])) for shape in itertools.pairwise(sizes)]

    def loss(params: Any, x: Any) -> Any:
        *hidden, (weights, bias) = params
        for each in hidden:
            x = jax.nn.relu(x @ each[0] + each[1])
        return -jax.nn.log_softmax(x @ weights + bias)[:, 0].mean()

    return jax.value_and_grad(loss), (params, jax.random.normal(key, (128, sizes[0])))


def _transformer(key: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    width, heads = 128, 4
    shapes = {**dict.fromkeys("qkvo", (width, width)), "a": (width, 4 * width), "b": (4 * width, width)}
    params = {name: jax.random.normal(key, shape) * 0.05 for name, shape in shapes.items()}

    def loss(params: Any, x: Any) -> Any:
        y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
        q, k, v = (jnp.moveaxis((y @ params[name]).reshape(*x.shape[:2], heads, -1), 1, 2) for name in "qkv")
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(mask, q @ jnp.swapaxes(k, -1, -2), -1e9))
        x = x + jnp.moveaxis(weights @ v, 1, 2).reshape(x.shape) @ params["o"]
        return (x + jax.nn.gelu(x @ params["a"]) @ params["b"]).mean()

    return jax.value_and_grad(loss), (params, jax.random.normal(key, (4, 64, width)))


def _recurrent(key: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    weights, xs = jax.random.normal(key, (128, 128)) / 12, jax.random.normal(key, (200, 128))

    def loss(weights: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(weights @ h + x)
            return h, h

        return (jax.lax.scan(step, xs[0], xs)[1] ** 2).mean()

    return jax.value_and_grad(loss), (weights, xs)


def _equation(key: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A neural differential equation, with steps of adaptive size."""
    import diffrax  # takes seconds

    def field(t: Any, y: Any, weights: Any) -> Any:
        return weights[1] @ jnp.tanh(weights[0] @ y)

    def loss(weights: Any, y: Any) -> Any:
        controller, term = diffrax.PIDController(rtol=1e-5, atol=1e-7), diffrax.ODETerm(field)
        options = {"stepsize_controller": controller, "max_steps": 256}
        return (diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 4.0, 0.05, y, weights, **options).ys ** 2).mean()

    weights = jax.random.normal(key, (2, 128, 128)) / 8
    return jax.value_and_grad(loss), (weights, jax.random.normal(key, (128,)))


MODELS = {
    "perceptron": _perceptron,
    "transformer": _transformer,
    "recurrent": _recurrent,
    "differential equation": _equation,
}


def _nan_checked(f: Callable[..., Any]) -> Callable[..., Any]:
    jitted = jax.jit(f)

    def call(*args: Any) -> Any:
        with jax.debug_nans(True):
            return jitted(*args)

    return call


WAYS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "": fx.jit,
    " watched": lambda f: fx.jit(fx.watch(f)),
    " with checkify": lambda f: jax.jit(checkify.checkify(f, errors=checkify.float_checks)),
    " with jax_debug_nans": _nan_checked,
}


def _running(program: Callable[..., Any], args: Any) -> Callable[[], float]:
    return lambda: timed(lambda: jax.block_until_ready(program(*args)), TIMES)


def _compiling(way: Callable[[Callable[..., Any]], Any], f: Callable[..., Any], args: Any) -> Callable[[], float]:
    return lambda: timed(lambda: way(lambda *args: f(*args)).lower(*args).compile())


def on_devices() -> dict[str, Callable[[], float]]:
    """A step of the perceptron with its batch over all devices, which XLA divides or a `jax.shard_map`."""
    f, (params, x) = _perceptron(jax.random.key(0))
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, rows = jax.NamedSharding(mesh, jax.P()), jax.NamedSharding(mesh, jax.P("d"))
    args = jax.device_put(params, whole), jax.device_put(x, rows)
    specs: dict[str, Any] = {"in_specs": (jax.P(), jax.P("d")), "out_specs": jax.P(), "check_vma": False}
    region = jax.shard_map(lambda params, x: jax.lax.pmean(f(params, x), "d"), mesh=mesh, **specs)
    measures: dict[str, Callable[[], float]] = {}
    for name, step in (("sharded", f), ("shard_map", region)):
        for how in ("", " watched"):
            measures[f"{name}{how}"] = _running(WAYS[how](step), args)
            measures[f"compiling {name}{how}"] = _compiling(WAYS[how], step, args)
    return measures


@case("watch-devices", "a step over 4 virtual devices, watched, and compiling it", "slow", on_cpus=True)
def watch_devices(repeats: int) -> Result:
    """In a process of its own, since devices are counted when JAX starts."""
    figures = run_child(4, repeats, "watch")["watch"]
    ratios = [
        cost(f"{of}{name} watched / {name}", figures[f"{of}{name} watched"], figures[f"{of}{name}"], at_most=bound)
        for name in ("sharded", "shard_map")
        for of, bound in (("", 1.3), ("compiling ", 2.0))
    ]
    return Result("step", ratios, per(figures, 1))


@case("watch", "a step with its gradient, watched, and compiling it", "slow")
def watch(repeats: int) -> Result:
    """Each compilation is that of another function."""
    measures: dict[str, Callable[[], float]] = {}
    for name, make in MODELS.items():
        f, args = make(jax.random.key(0))
        for how, way in WAYS.items():
            measures[f"{name}{how}"] = _running(way(f), args)
            if way is not _nan_checked:
                measures[f"compiling {name}{how}"] = _compiling(way, f, args)
    figures = interleave(measures, repeats)
    ratios = [
        cost(f"{of}{name}{how} / {name}", figures[f"{of}{name}{how}"], figures[f"{of}{name}"], at_most=bound)
        for name in MODELS
        for of, how, bound in (
            ("", " watched", 1.3),
            ("", " with checkify", None),
            ("", " with jax_debug_nans", None),
            ("compiling ", " watched", 2.0),
        )
    ]
    return Result("step", ratios, per(figures, 1))
