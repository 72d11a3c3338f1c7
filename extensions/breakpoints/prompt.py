"""The prompt at a breakpoint: where it may be shown, and what it understands."""

from __future__ import annotations

import cmd
import contextlib
import contextvars
import ctypes
import linecache
import os
import pprint
import select
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from effects import _jax
from effects.dispatch.runtime.runtime import effects_barrier, runtime
from effects.extensions.breakpoints.frames import Frame
from effects.lowering.native_module import native

MSG_NOT_ASKED = (
    "The program does not wait at {call}: {why}. A breakpoint asks in a terminal, a notebook, or a test in a terminal, "
    "and elsewhere the program goes on. Run it in one of these."
)

_PROMPT = "(fx) "

_one_at_a_time = threading.Lock()
_is_asking = contextvars.ContextVar("is_asking", default=False)  # where the prompt evaluates an expression
_warned: dict[Any, Any] = {}  # the registry of shown warnings


class _Prompt(cmd.Cmd):
    """Reads commands until the program is to continue or to end."""

    prompt = ""  # the reader shows it
    use_rawinput = False
    doc_header = "Commands (help COMMAND says more); anything else is an expression that is shown:"

    def __init__(self, frames: Sequence[Frame], title: str, reader: Any):
        super().__init__(stdin=reader, stdout=sys.stdout)
        self._frames, self._at = frames, 0
        self.intro = "\n".join([*filter(None, [title]), *self._line_of(frames[0])])
        self.ends = False

    def _say(self, *lines: str) -> None:
        print(*lines, sep="\n", file=self.stdout, flush=True)

    def _line_of(self, frame: Frame) -> list[str]:
        source = linecache.getline(frame.file, frame.line, dict(frame.globals)).strip()
        place = "> " if frame is self._frames[self._at] else "  "
        return [
            f"{place}{_jax.named_line(frame.file, frame.line)} in {frame.function}",
            *([f"-> {source}"] * bool(source)),
        ]

    def _show(self, text: str, shown: Callable[[Any], str]) -> None:
        frame = self._frames[self._at]
        try:
            value = eval(text, {**frame.globals, **frame.values})
            effects_barrier()  # the epochs of programs that it has called
            self._say(shown(value))
        except Exception as error:
            message = error.msg if isinstance(error, SyntaxError) else str(error)  # without JAX's notes
            self._say(f"*** {': '.join(filter(None, [type(error).__qualname__, message]))}")

    def _move(self, step: int, end: str) -> None:
        if not 0 <= self._at + step < len(self._frames):
            return self._say(f"*** {end}")
        self._at += step
        self._say(*self._line_of(self._frames[self._at]))

    def onecmd(self, line: str) -> bool:
        command, argument, _ = self.parseline(line)
        if argument and command not in ("p", "pp", "h", "help"):  # an expression that begins with a command's name
            line = f"p {line}"
        return super().onecmd(line)

    def default(self, line: str) -> None:
        self.do_p(line)

    def do_p(self, text: str) -> None:
        """p EXPRESSION: shows its value. Arrays are NumPy's."""
        self._show(text, repr)

    def do_pp(self, text: str) -> None:
        """pp EXPRESSION: shows its value, broken into lines."""
        self._show(text, pprint.pformat)

    def do_a(self, _: str) -> None:
        """a: shows all names of this frame, with their values."""
        for name, value in self._frames[self._at].values.items():
            self._say(f"{name} = {value!r}")

    def do_u(self, _: str) -> None:
        """u: goes to the frame that called this one."""
        self._move(1, "Oldest frame")

    def do_d(self, _: str) -> None:
        """d: goes to the frame that this one called."""
        self._move(-1, "Newest frame")

    def do_w(self, _: str) -> None:
        """w or bt: shows all frames, the innermost last."""
        for frame in reversed(self._frames):
            self._say(*self._line_of(frame))

    def do_l(self, _: str) -> None:
        """l: shows the lines around this one."""
        frame = self._frames[self._at]
        lines = linecache.getlines(frame.file, dict(frame.globals))
        for number in range(max(1, frame.line - 5), min(len(lines), frame.line + 5) + 1):
            self._say(f"{number:4}{'->' if number == frame.line else '  '} {lines[number - 1].rstrip()}")

    def do_c(self, _: str) -> bool:
        """c: the program goes on."""
        return True

    def do_q(self, _: str) -> bool:
        """q, or the end of the input: the program ends here, with an error."""
        self.ends = True
        return True

    do_bt, do_h, do_EOF = do_w, cmd.Cmd.do_help, do_q


def ask(frames: Sequence[Frame], title: str, call: str) -> bool:
    """Lets the user look at these frames. Returns True if the program continues."""
    if _is_asking.get():
        return True  # an expression at the prompt has called this program
    plugin: Any = sys.modules.get("effects_pytest")
    shown = plugin.without_capture() if plugin is not None else contextlib.nullcontext()
    with _one_at_a_time, shown as was_captured, runtime.drain.asking_person():
        asked = _is_asking.set(True)
        try:
            if (reader := _find_reader()) is not None:
                print(end="\n" * bool(was_captured))  # on a new line after pytest's dots
                prompt = _Prompt(frames, title, reader)
                prompt.cmdloop()
                return not prompt.ends
            why = "the standard input is no terminal"
        except Exception as error:  # a notebook without a user, or a closed terminal
            why = str(error) or type(error).__name__
        finally:
            _is_asking.reset(asked)
    place = frames[0].file, frames[0].line
    warnings.warn_explicit(MSG_NOT_ASKED.format(call=call, why=why), RuntimeWarning, *place, registry=_warned)
    return True


# Reading a line in a drain thread. Only the main thread runs Python's signal handlers, and it may wait in XLA. So while
# a line is read, SIGINT writes to a pipe.


@contextlib.contextmanager
def _interrupts() -> Iterator[IO[bytes]]:
    """Yields a pipe that can be read once Ctrl-C has been pressed."""
    read, write = os.pipe()
    with open(read, "rb", 0) as interrupts, open(write, "wb", 0):
        native.interrupts_to(write)
        try:
            yield interrupts
        finally:
            native.interrupts_to(-1)


class _Terminal:
    def readline(self) -> str:
        """Returns a line, empty at the end of the input."""
        with _interrupts() as interrupts:
            print(_PROMPT, end="", flush=True)
            if interrupts in select.select([sys.stdin, interrupts], [], [])[0]:
                raise KeyboardInterrupt
            return os.read(sys.stdin.fileno(), 1 << 16).decode(errors="replace")  # a terminal returns one line at most


class _Notebook:
    def readline(self) -> str:
        """Returns the user's answer in a notebook's box. `input` waits in a thread of its own: an interrupt that comes
        too late for the box reaches no other code."""
        read, write = os.pipe()
        context, answers = contextvars.copy_context(), list[str | BaseException]()  # the cell with the input box

        def wait() -> None:
            try:
                answers.append(context.run(input, _PROMPT) + "\n")
            except BaseException as error:
                answers.append(error)
            finally:
                os.close(write)

        thread = threading.Thread(target=wait, daemon=True)
        with open(read, "rb", 0) as answered, _interrupts() as interrupts:
            thread.start()
            if is_interrupted := interrupts in select.select([answered, interrupts], [], [])[0]:
                interrupt = ctypes.py_object(KeyboardInterrupt)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), interrupt)
            thread.join()
        if is_interrupted:
            raise KeyboardInterrupt
        if isinstance(answer := answers[0], BaseException):
            raise answer
        return answer


def _find_reader() -> _Terminal | _Notebook | None:
    """Returns the reader of the user's lines, or None if there is no user."""
    if hasattr(_jax.ipython_shell(), "kernel"):
        return _Notebook()
    stream = sys.stdin
    return _Terminal() if stream is not None and not stream.closed and stream.isatty() else None
