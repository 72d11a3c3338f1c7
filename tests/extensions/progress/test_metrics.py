"""Metrics behind bars, and bars beside those of tqdm's."""

from __future__ import annotations

import contextlib
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.notebook import execute
from tests.extensions.progress.terminal import screen_of
from tests.extensions.progress.test_displays import plain

pytestmark = pytest.mark.slow

TRAIN = """
import effects as fx, jax, jax.numpy as jnp

@fx.jit
def train(x):
    bar = fx.progress(4, "train")
    def step(i, x):
        bar.update(i + 1, loss=1 / (x + 1), pair=jnp.stack([x, 2.5 * x]), lr=0.1)
        return x + 1
    return jax.lax.fori_loop(0, 4, step, x)

train(jnp.float32(0))
fx.effects_barrier(timeout=60)
"""
SHOWN = "loss=0.25, lr=0.1, pair=[3 7.5]"


def texts(function, *args):
    """What the records of a function say."""
    with fx.capture(suppress=True) as records:
        fx.jit(function)(*args)
    return [record.text for record in records]


def test_metrics_stand_behind_the_bar_on_a_terminal():
    """The newest of each, in the order of their names, on the bar's line; what there is no room for is cut."""
    lines = screen_of(f"{TRAIN}\nfx.progress(2, 'cut').update(2, **{{'metric' * 20: 1}})\nfx.effects_barrier()")
    [line] = [line for line in lines if line.startswith("train")]
    assert "━" in line and "4/4" in line and line.endswith(SHOWN)
    [line] = [line for line in lines if line.startswith("cut")]
    assert "━" * 15 in line and "2/2" in line and line.endswith("…")


def test_metrics_stand_behind_the_bar_in_a_notebook():
    """As on a terminal."""
    [outputs] = execute(TRAIN)
    [shown] = [plain(output.data) for output in outputs if output.output_type == "display_data"]
    assert "4/4" in shown and shown.rstrip().endswith(SHOWN)


def test_metrics_in_lines():
    """Where there is no terminal they end the line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        bar = fx.progress(description="files")
        bar.update(1, seen=123456789, ok=True, rate=np.float32(1 / 3))
        fx.effects_barrier(timeout=60)
    assert out.getvalue().startswith("files: 1 in 0.0 s, ok=True, rate=0.3333, seen=123456789")


def test_metrics_are_fields_of_records():
    """Handlers get their values, of every type of numbers."""
    with fx.capture(suppress=True) as records:
        fx.jit(lambda x: fx.progress(2).update(x, total=x * 0.5, b=jnp.bfloat16(1.5), c=1 + 2j, done_=x > 0))(1)
    [record] = records
    assert record.text == "1/2 b=1.5, c=1+2j, done_=True, total=0.5"
    assert record.fields["metrics"]["total"].dtype == np.float32 and record.fields["done"] == 1


def test_metrics_under_transformations(capsys):
    """The bar of the slowest lane shows its metrics; a derivative is as without them."""

    def f(n, x):
        bar = fx.progress(4, "lanes", every=1)
        bar.update(n, x=x)
        return x * x

    assert texts(jax.vmap(f), jnp.arange(2), jnp.array([0.5, 1.5])) == ["lanes: 0/4 x=0.5", "lanes: 1/4 x=1.5"]
    fx.jit(jax.vmap(f))(jnp.array([3, 2]), jnp.array([0.5, 1.5]))
    fx.effects_barrier(timeout=60)
    assert "lanes: 50% 2/4" in (shown := capsys.readouterr().out) and shown.rstrip().endswith("x=1.5")

    def loss(x):
        bar = fx.progress(3)

        def step(i, x):
            bar.update(i + 1, x=x)
            return x * x

        return jax.lax.fori_loop(0, 3, step, x)

    assert texts(jax.grad(loss), 1.0) == ["1/3 x=1", "2/3 x=1", "3/3 x=1"]
    assert fx.jit(jax.grad(loss))(1.0) == 8


def test_reference_passes_its_value_as_a_metric():
    def f():
        ref = jax.new_ref(1.0)
        fx.progress(1).update(jnp.int32(1), loss=ref)

    assert texts(f) == ["1/1 loss=1"]


BAD = {
    "text": "falling", "none": None, "list": [1.0], "object": object(), "key": jax.random.key(0),
    "large": jnp.zeros(17), "strings": np.array(["a"]), "time": np.datetime64("2024-01-01"),
}  # fmt: skip


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_metric_that_is_no_number_is_an_error_at_its_line(value):
    """Three sentences: what was given, what it must be, what to pass."""
    with pytest.raises(TypeError, match="given loss=.* A metric is a number.* Pass, say, `bar.update") as caught:
        fx.jit(lambda x: fx.progress(3).update(x, loss=value))(1)
    assert "test_metrics.py:" in str(caught.value)


def test_bars_and_lines_of_several_threads_beside_tqdms():
    """Drawing goes on in the user's thread and in the drain's, and every line is whole, above the bars."""
    pytest.importorskip("tqdm")
    lines = screen_of("""
import effects as fx, jax
from tqdm import tqdm

def body(i, x):
    fx.print("step {}", i)
    return x + 1

program = fx.jit(lambda x: fx.fori_loop_with_progress(0, 5, body, x, description="ours"))
program(0)
for i in tqdm(range(2000), desc="mine", mininterval=0, bar_format="{desc}: {n_fmt}/{total_fmt}"):
    if i == 1000:
        fx.effects_barrier(timeout=60)
print("end")
""")
    assert [line.split(":")[0].split()[0] for line in lines[:5]] == ["step"] * 5 and lines[-1] == "end"
    assert [line for line in lines if line.startswith("step")] == [f"step {i}" for i in range(5)]
    assert [line for line in lines if "mine" in line] == ["mine: 2000/2000"]
    [ours] = [line for line in lines if "ours" in line]
    assert ours.startswith("ours") and "5/5" in ours
