"""Data-parallel training with Equinox and its own jit: metrics in a table, a bar, and checkpoints to go on from.

The batch is divided among all devices, and each has all parameters. What the example prints stands in its docstring:
`python examples/training/with_equinox.py` runs it, and with `JAX_NUM_CPU_DEVICES=8` on eight devices. It needs
`pip install equinox optax`.
"""

import csv
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import effects as fx

MESH = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
ON_ALL, DIVIDED = jax.NamedSharding(MESH, jax.P()), jax.NamedSharding(MESH, jax.P("data"))
OPTIMIZER = optax.adam(0.02)


class State(eqx.Module):
    step: jax.Array
    model: eqx.nn.MLP
    optimizer: optax.OptState


def _initial():
    model = eqx.nn.MLP(1, 1, 32, 1, jnp.tanh, key=jax.random.key(0))
    state = State(jnp.int32(0), model, OPTIMIZER.init(eqx.filter(model, eqx.is_array)))
    return eqx.filter_shard(state, ON_ALL)


def _batch(step):
    x = np.random.default_rng(step).uniform(-2, 2, (64, 1)).astype(np.float32)
    return jax.device_put((x, np.sin(x)), DIVIDED)


def _make_step(folder):
    def write(state):
        eqx.tree_serialise_leaves(folder / f"{state.step:04}.eqx", state)

    def save(state, is_due):
        fx.callback(write, None, state, when=is_due)  # the program does not wait for it
        fx.print("checkpoint after step {}", state.step, when=is_due)

    @fx.filter_jit
    def step(state, x, y):
        loss, grads = eqx.filter_value_and_grad(lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2))(state.model)
        updates, optimizer = OPTIMIZER.update(grads, state.optimizer)
        state = State(state.step + 1, eqx.apply_updates(state.model, updates), optimizer)
        fx.log("step", step=state.step, loss=loss)
        save(eqx.filter(state, eqx.is_array), state.step % 5 == 0)
        return state

    return step


def _train(folder, steps):
    """Trains up to so many steps, from the newest checkpoint in the folder if there is one."""
    state, step = _initial(), _make_step(folder)
    if checkpoints := sorted(folder.glob("*.eqx")):
        arrays, functions = eqx.partition(state, eqx.is_array)
        arrays = eqx.tree_deserialise_leaves(checkpoints[-1], arrays)
        state = eqx.filter_shard(eqx.combine(arrays, functions), ON_ALL)
        print("going on after step", state.step)
    with fx.add_handler(fx.CsvHandler(folder / "metrics.csv", append=True), effects="log"):
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
    22 lines of metrics, the last of step 20
    the loss of the last is less than a tenth of the first: True
    the same without a stop: True
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        print("stopped after step", _train(Path(folder), 12).step)
        state = _train(Path(folder), 20)
        with open(Path(folder, "metrics.csv"), newline="") as file:
            lines = list(csv.DictReader(file))
        print(len(lines), "lines of metrics, the last of step", lines[-1]["step"])
        fell = float(lines[-1]["loss"]) < float(lines[0]["loss"]) / 10
        print("the loss of the last is less than a tenth of the first:", fell)
        with fx.capture(suppress=True):
            expected = _train(Path(other), 20)
        same = eqx.tree_equal(state.model, expected.model, rtol=1e-4, atol=1e-7)
        print("the same without a stop:", bool(same))


EXAMPLES = [train]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
