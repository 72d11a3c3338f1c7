"""Data-parallel training with Flax linen: metrics in a file of JSON lines, a bar, and checkpoints to go on from.

The batch is divided among all devices, and each has all parameters. What the example prints stands in its docstring:
`python examples/training/flax_linen.py` runs it, and with `JAX_NUM_CPU_DEVICES=8` on eight devices. It needs
`pip install flax optax`.
"""

import json
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization
from flax.training.train_state import TrainState

import effects as fx

MESH = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
ON_ALL, DIVIDED = jax.NamedSharding(MESH, jax.P()), jax.NamedSharding(MESH, jax.P("data"))


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(jnp.tanh(nn.Dense(32)(x)))


def _initial():
    model = Model()
    params = model.init(jax.random.key(0), jnp.ones((1, 1)))
    return jax.device_put(TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(0.02)), ON_ALL)


def _batch(step):
    x = np.random.default_rng(step).uniform(-2, 2, (64, 1)).astype(np.float32)
    return jax.device_put((x, np.sin(x)), DIVIDED)


def _make_step(folder):
    def write(state):
        (folder / f"{state.step:04}.msgpack").write_bytes(serialization.to_bytes(state))

    def save(state, is_due):
        fx.callback(write, None, state, when=is_due)  # the program does not wait for it
        fx.print("checkpoint after step {}", state.step, when=is_due)

    @fx.jit
    def step(state, x, y):
        loss, grads = jax.value_and_grad(lambda params: jnp.mean((state.apply_fn(params, x) - y) ** 2))(state.params)
        state = state.apply_gradients(grads=grads)
        fx.log("step", step=state.step, loss=loss)
        save(state, state.step % 5 == 0)
        return state

    return step


def _train(folder, steps):
    """Trains up to so many steps, from the newest checkpoint in the folder if there is one."""
    state, step = _initial(), _make_step(folder)
    if checkpoints := sorted(folder.glob("*.msgpack")):
        state = jax.device_put(serialization.from_bytes(state, checkpoints[-1].read_bytes()), ON_ALL)
        print("going on after step", state.step)
    with fx.add_handler(fx.JsonLinesHandler(folder / "metrics.jsonl", append=True), effects="log"):
        bar = fx.progress(steps, "train", every=10)
        for number in range(int(state.step), steps):
            state = step(state, *_batch(number))
            bar.update(number + 1)
        fx.effects_barrier()
    return state


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
    steps in the metrics: 1 to 12, 11 to 20
    the loss of the last is less than a tenth of the first: True
    the same without a stop: True
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        print("stopped after step", _train(Path(folder), 12).step)
        state = _train(Path(folder), 20)
        records = [json.loads(line)["fields"] for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
        steps = [record["step"] for record in records]
        again = steps.index(11, 11)
        print(f"steps in the metrics: {steps[0]} to {steps[again - 1]}, {steps[again]} to {steps[-1]}")
        print("the loss of the last is less than a tenth of the first:", records[-1]["loss"] < records[0]["loss"] / 10)
        with fx.capture(suppress=True):
            expected = _train(Path(other), 20)
        same = jax.tree.map(lambda x, y: np.allclose(x, y, rtol=1e-4), state.params, expected.params)
        print("the same without a stop:", jax.tree.all(same))


EXAMPLES = [train]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
