"""Data-parallel training with Flax nnx and its own jit: metrics in memory, a bar, and checkpoints to go on from.

The batch is divided among all devices, and each has all parameters. What the example prints stands in its docstring:
`python examples/training/flax_nnx.py` runs it, and with `JAX_NUM_CPU_DEVICES=8` on eight devices. It needs
`pip install flax optax`.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, serialization

import effects as fx

MESH = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
ON_ALL, DIVIDED = jax.NamedSharding(MESH, jax.P()), jax.NamedSharding(MESH, jax.P("data"))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.last = nnx.Linear(1, 32, rngs=rngs), nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.hidden(x)))


def _initial():
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)
    _set(model, optimizer, _values(model, optimizer))
    return model, optimizer


def _values(model, optimizer):
    return nnx.to_pure_dict(nnx.state({"model": model, "optimizer": optimizer}))


def _set(model, optimizer, values):
    both = {"model": model, "optimizer": optimizer}
    state = nnx.state(both)
    nnx.replace_by_pure_dict(state, jax.device_put(values, ON_ALL))
    nnx.update(both, state)


def _batch(step):
    x = np.random.default_rng(step).uniform(-2, 2, (64, 1)).astype(np.float32)
    return jax.device_put((x, np.sin(x)), DIVIDED)


def _make_step(folder):
    def write(step, values):
        (folder / f"{step:04}.msgpack").write_bytes(serialization.msgpack_serialize(values))

    def save(step, values, is_due):
        fx.callback(write, None, step, values, when=is_due)  # the program does not wait for it
        fx.print("checkpoint after step {}", step, when=is_due)

    @fx.nnx_jit
    def step(model, optimizer, x, y):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        number = optimizer.step[...]
        fx.log("step", step=number, loss=loss)
        save(number, _values(model, optimizer), number % 5 == 0)

    return step


def _train(folder, steps):
    """Trains up to so many steps, from the newest checkpoint in the folder if there is one."""
    (model, optimizer), step = _initial(), _make_step(folder)
    if checkpoints := sorted(folder.glob("*.msgpack")):
        _set(model, optimizer, serialization.msgpack_restore(checkpoints[-1].read_bytes()))
        print("going on after step", optimizer.step[...])
    with fx.add_handler(fx.ListHandler(), effects="log") as metrics:
        bar = fx.progress(steps, "train", every=10)
        for number in range(int(optimizer.step[...]), steps):
            step(model, optimizer, *_batch(number))
            bar.update(number + 1)
        fx.effects_barrier()
    return model, metrics.columns("step")


def train():
    """A run that stops between two checkpoints goes on from the first of them, and comes to the same parameters.

    checkpoint after step 5
    checkpoint after step 10
    train: 83% 10/12 in ...
    train: 100% 12/12 in ...
    stopped after step 12
    going on after step 10
    checkpoint after step 15
    checkpoint after step 20
    train: 100% 20/20 in ...
    metrics of the steps [11 12 13 14 15 16 17 18 19 20]
    the loss of the last is less than a tenth of the first: True
    the same without a stop: True
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        _, first = _train(Path(folder), 12)
        print("stopped after step", first["step"][-1])
        model, second = _train(Path(folder), 20)
        print("metrics of the steps", second["step"])
        print("the loss of the last is less than a tenth of the first:", second["loss"][-1] < first["loss"][0] / 10)
        with fx.capture(suppress=True):
            expected, _ = _train(Path(other), 20)
        same = jax.tree.map(lambda x, y: np.allclose(x, y, rtol=1e-4), nnx.state(model), nnx.state(expected))
        print("the same without a stop:", jax.tree.all(same))


EXAMPLES = [train]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
