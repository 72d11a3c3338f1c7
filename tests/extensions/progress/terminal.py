"""A program on a terminal: a pseudo-terminal, and an emulator that says what stands on its screen."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import pyte

from tests.helpers import ROOT

SIZE = 80, 24


def screen_of(code: str, term: str = "xterm-256color") -> list[str]:
    """The lines that stand on the screen when a process that runs this code has ended."""
    screen = pyte.Screen(*SIZE)
    stream = pyte.ByteStream(screen)
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, SIZE[::-1])
    environment = {**os.environ, "TERM": term, "COLUMNS": str(SIZE[0]), "LINES": str(SIZE[1])}
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=ROOT, env=environment) as process:
        os.close(its)
        try:
            while data := os.read(ours, 1 << 16):
                stream.feed(data)
        except OSError:  # the process has ended
            pass
        finally:
            os.close(ours)
        assert process.wait(240) == 0, screen.display
    return [line.rstrip() for line in screen.display if line.strip()]
