"""A process on a pseudo-terminal, and a person who answers its prompts."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios

from tests.helpers import ROOT

PROMPT, END = "(fx) ", "\x1e"
CTRL_C, CTRL_D = b"\x03", b"\x04"

OWN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
"""Has Ctrl-C reach the process, whose standard input is the terminal."""

_PROGRAMS = f"""
{OWN_TERMINAL}
import os, sys
import jax, jax.numpy as jnp, numpy as np
import effects as fx

for path in os.fdopen(int(sys.argv[1])):
    path = path.strip()
    try:
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), dict(jax=jax, jnp=jnp, np=np, fx=fx))
        fx.effects_barrier(timeout=120)
    except BaseException as error:
        print(type(error).__name__, error)
    print({END!r}, flush=True)
"""


class Terminal:
    """A process that has a terminal of its own."""

    def __init__(self, *arguments: str, **options):
        self._ours, its = pty.openpty()
        attributes = termios.tcgetattr(its)
        attributes[1] &= ~termios.OPOST  # lines end as they are written
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(its, termios.TCSANOW, attributes)
        command = [sys.executable, "-X", "faulthandler", *arguments]
        options = {"cwd": ROOT, "start_new_session": True, **options}
        self.process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, **options)
        os.close(its)
        self._left = ""

    def read_until(self, *ends: str) -> tuple[str, str]:
        """What is shown until one of these, and which. Empty: the process has ended."""
        while not (found := [end for end in ends if end in self._left]):
            assert select.select([self._ours], [], [], 120)[0], f"nothing is shown after {self._left!r}"
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:  # the process has ended
                data = b""
            if not data:
                return self._left, ""
            self._left += data.decode()
        end = min(found, key=self._left.index)
        text, _, self._left = self._left.partition(end)
        return text, end

    def answer(self, *commands: str | bytes, end: str = END) -> list[str]:
        """Answers each prompt with a line, or with a key. Returns what is shown before each prompt, and at the end."""
        shown = []
        for command in commands:
            text, found = self.read_until(PROMPT, end) if end else self.read_until(PROMPT)
            shown.append(text)
            if found != PROMPT:
                self.process.kill()
                self.process.wait()
                raise AssertionError(shown)
            os.write(self._ours, command if isinstance(command, bytes) else f"{command}\n".encode())
        text, found = self.read_until(*([PROMPT, end] if end else [PROMPT]))
        assert found == end, [*shown, text]
        return [*shown, text.lstrip("\n")]

    def close(self) -> int:
        code = self.process.wait(60)
        os.close(self._ours)
        return code


class Programs(Terminal):
    """A terminal in which one program after the other runs, in one process."""

    def __init__(self, folder):
        self._folder, self._count = folder, 0
        read, self._write = os.pipe()
        super().__init__("-c", _PROGRAMS, str(read), pass_fds=[read])
        os.close(read)

    def run(self, code: str, *commands: str | bytes) -> list[str]:
        """Runs a program, and answers its prompts. Returns what is shown before each prompt, and at the end."""
        self._count += 1
        path = self._folder / f"program{self._count}.py"
        path.write_text(code)
        os.write(self._write, f"{path}\n".encode())
        return [text.replace(str(path), "program.py").strip("\n") for text in self.answer(*commands)]

    def close(self) -> int:
        os.close(self._write)
        return super().close()
