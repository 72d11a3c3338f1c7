"""Draws order.svg: what a loop over four devices prints with JAX's print, and with this library's. Both are real runs.

python docs/images/order.py
"""

import contextlib
import io
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

import effects as fx

COLOURS = ["#61afef", "#e5c07b", "#d78fe8", "#98c379"]
CODE = """\
@{jit}
@shard_map  # over four devices
def f(x):
    def step(n, x):
        {print}("step {{}}, device {{}}", n, device)
        return x @ x

    device = jax.lax.axis_index("i")
    return jax.lax.fori_loop(0, 4, step, x)
"""


def run(jit, print_):
    """The lines that the program prints."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x):
        def step(n, x):
            print_("step {}, device {}", n, device)
            return x @ x

        device = jax.lax.axis_index("i")
        return jax.lax.fori_loop(0, 4, step, x)

    program = jit(jax.shard_map(f, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i")))
    x = jnp.zeros((4, 64, 64))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        program(x)
        jax.effects_barrier()
    return out.getvalue().splitlines()


def coloured(lines):
    """Each line in the colour of its device."""
    return Text("\n").join(Text(line, COLOURS[int(line[-1])]) for line in lines)


def main():
    jax.config.update("jax_num_cpu_devices", 4)
    console = Console(record=True, width=128, file=io.StringIO())
    table = Table(box=None, padding=(0, 2, 1, 2), expand=True)
    for title in ("jax.jit and jax.debug.print", "fx.jit and fx.print"):
        table.add_column(title, ratio=1)
    code = [CODE.format(jit="jax.jit", print="jax.debug.print"), CODE.format(jit="fx.jit", print="fx.print")]
    table.add_row(*(Syntax(each, "python", theme="ansi_dark", background_color="default") for each in code))
    table.add_row(coloured(run(jax.jit, jax.debug.print)), coloured(run(fx.jit, fx.print)))
    console.print(table)
    svg = console.export_svg(title="four devices, one loop")
    Path(__file__).with_name("order.svg").write_text(svg)


if __name__ == "__main__":
    main()
