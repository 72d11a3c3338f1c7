"""Draws progress.svg: a program with two bars on a real pseudo-terminal, as its screen stands while it runs.

python docs/images/progress.py
"""

import io
import itertools
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

SIZE = 50, 11
PROGRAM = """
import jax, os
import effects as fx

@fx.jit
def train(x):
    def epoch(n, x):
        fx.print("epoch {}: loss {:.4f}", n, 1 / (n + 1))
        fx.callback(lambda n: n == 5 and os._exit(0), None, n)  # the picture shows a program that runs
        return fx.fori_loop_with_progress(0, 400, lambda _, x: x + 1, x, description="steps")
    return fx.fori_loop_with_progress(0, 8, epoch, x, description="epochs")

train(0)
fx.effects_barrier()
"""


def screen_of(program: str) -> pyte.Screen:
    screen = pyte.Screen(*SIZE)
    stream = pyte.ByteStream(screen)
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(SIZE[0]), "LINES": str(SIZE[1])}
    with subprocess.Popen([sys.executable, "-c", program], stdin=its, stdout=its, stderr=its, env=environment):
        os.close(its)
        try:
            while data := os.read(ours, 1 << 16):
                stream.feed(data)
        except OSError:  # the program has ended
            pass
    return screen


def style_of(cell) -> str:
    colour = {"default": "", "brown": "yellow"}.get(cell.fg, cell.fg)
    if len(colour) == 6 and all(digit in "0123456789abcdef" for digit in colour):
        colour = f"#{colour}"
    return f"{'bold ' * cell.bold}{colour}".strip()


screen = screen_of(PROGRAM)
console = Console(record=True, width=SIZE[0], file=io.StringIO(), force_terminal=True)
for row in range(SIZE[1]):
    line = Text()
    cells = [screen.buffer[row][column] for column in range(SIZE[0])]
    for style, run in itertools.groupby(cells, style_of):
        line.append("".join(cell.data for cell in run), style)
    line.rstrip()
    console.print(line)
Path(__file__).with_name("progress.svg").write_text(
    console.export_svg(title="python train.py").replace("<svg ", '<svg width="520" ', 1)
)
