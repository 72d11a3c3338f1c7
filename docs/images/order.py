"""Draws order.svg: what a loop over four devices prints with JAX's print, and with this library's. Both are real runs.

python docs/images/order.py
"""

import contextlib
import io
from html import escape
from pathlib import Path

import jax
import jax.numpy as jnp

import effects as fx

STEPS = 3
CODE = f"""\
@shard_map  # over four devices
def f(x):
    def step(n, x):
        print("step {{}}, device {{}}", n, device)
        return x @ x

    device = jax.lax.axis_index("i")
    return jax.lax.fori_loop(0, {STEPS}, step, x)"""
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" width="440" height="{height}" viewBox="0 0 400 {view}" role="img">
<title>{title}</title>
<style>
  svg {{ --ink: #1f2328; --muted: #59636e; --panel: #f3f4f6; --wrong: #c4232e; --right: #1a7f37; }}
  @media (prefers-color-scheme: dark) {{
    svg {{ --ink: #dcdfe4; --muted: #9aa4af; --panel: #22262c; --wrong: #ff7b72; --right: #4cc46a; }}
  }}
  text {{ fill: var(--ink); white-space: pre; }}
  text {{ font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
  .panel {{ fill: var(--panel); }} .muted {{ fill: var(--muted); }}
  .head {{ font: bold 14px system-ui, sans-serif; }} .note {{ font: 12px system-ui, sans-serif; }}
  .wrong {{ fill: var(--wrong); }} .right {{ fill: var(--right); }}
</style>
"""


def run(jit, print_):
    """The lines that the program prints."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x):
        def step(n, x):
            print_("step {}, device {}", n, device)
            return x @ x

        device = jax.lax.axis_index("i")
        return jax.lax.fori_loop(0, STEPS, step, x)

    program = jit(jax.shard_map(f, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i")))
    x = jnp.zeros((4, 64, 64))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        program(x)
        jax.effects_barrier()
    return out.getvalue().splitlines()


def text(x, y, line, kind=""):
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(line)}</text>'


def column(x, y, name, verdict, lines, ordered):
    """A column of lines, in which those that are not in their place have a mark."""
    wrong = lines != ordered
    kind = "wrong" if wrong else "right"
    yield f'<rect class="panel" x="{x}" y="{y}" width="194" height="{58 + 17 * len(lines)}" rx="6"/>'
    yield text(x + 12, y + 22, f"{'✗' if wrong else '✓'} {name}", f"head {kind}")
    yield text(x + 12, y + 40, verdict, "note")
    for i, (line, expected) in enumerate(zip(lines, ordered, strict=True)):
        marked = line != expected
        yield text(x + 12, y + 62 + 17 * i, f"{line}{' ✗' if marked else ''}", "wrong" if marked else "")


def main():
    jax.config.update("jax_num_cpu_devices", 4)
    theirs, ours = run(jax.jit, jax.debug.print), run(fx.jit, fx.print)
    ordered = sorted(theirs)
    assert ours == ordered != theirs
    code = CODE.splitlines()
    below = 22 + 16 * len(code)
    view = below + 58 + 17 * len(ours) + 2
    title = "A loop over four devices: JAX's print has lines in the wrong order, fx.print has all in program order"
    drawn = [HEAD.format(height=view * 440 // 400, view=view, title=title)]
    drawn.append(f'<rect class="panel" width="400" height="{below - 8}" rx="6"/>')
    drawn += [text(12, 20 + 16 * i, line, "muted") for i, line in enumerate(code)]
    drawn += column(0, below, "jax.debug.print", "lines in the wrong order", theirs, ordered)
    drawn += column(206, below, "fx.print", "lines in program order", ours, ordered)
    Path(__file__).with_name("order.svg").write_text("\n".join([*drawn, "</svg>", ""]))


if __name__ == "__main__":
    main()
