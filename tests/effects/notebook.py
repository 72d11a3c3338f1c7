"""A notebook: a kernel in a process of its own."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import time

import nbclient
import nbformat
from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from tests.helpers import ROOT

FIRST = """
import logging, os, signal, threading
logging.disable()
import jax, jax.numpy as jnp
import effects as fx

@fx.jit
def show(x):
    fx.print("x = {}", x)

@fx.jit
def slow(x, n):
    m = jax.lax.fori_loop(0, n, lambda _, m: jnp.tanh(m @ m), jnp.full((200, 200), x))
    fx.print("slow {}", m[0, 0])
    fx.print("of {}", x)

def fail(x):
    raise ValueError(x)

fails = fx.jit(lambda x: fx.callback(fail, None, x))
"""
"""The first cell of the tests' notebooks."""


# A kernel that is aborted writes the stacks of its threads to the test's standard error: it has replaced its own.
_LAUNCH = (
    "import faulthandler, os; faulthandler.enable(os.dup(2)); "
    "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"
)


class Notebook:
    """A kernel in a process of its own, whose cells are sent as a notebook sends them."""

    def __init__(self, folder, **environment):
        connection = str(folder / "connection.json")
        write_connection_file(connection, transport="ipc", ip=str(folder / "socket"))
        # Set by pytest, it would make the kernel leave its outputs as they are.
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        env |= {"IPYTHONDIR": str(folder / "ipython"), **environment}  # else all kernels write into one history
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
        self._process = subprocess.Popen([sys.executable, "-c", _LAUNCH, "-f", connection], cwd=folder, env=env)
        self._client = BlockingKernelClient(connection_file=connection)
        try:
            self._client.load_connection_file()
            self._client.start_channels()
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self):
        while True:
            try:
                return self._client.wait_for_ready(timeout=240)
            except RuntimeError as error:  # the client takes one for dead that has not begun within a second
                if "died" not in str(error) or self._process.poll() is not None:
                    raise

    def run(self, *cells):
        """Sends all cells at once, and then a barrier. Returns the output that stands below each."""
        return self.execute(*cells, "fx.effects_barrier()")

    def execute(self, *cells):
        """Sends all cells at once. Returns the output that stands below each, with the names of errors."""
        sent = [self._client.execute(cell, stop_on_error=False) for cell in cells]
        outputs = dict.fromkeys(sent, "")
        deadline = time.monotonic() + 240
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                self._end_silent()
                raise AssertionError(f"the kernel says nothing; by now: {outputs}; see where it stood above") from None
            cell, content = message["parent_header"].get("msg_id"), message["content"]
            if cell not in outputs:
                continue
            if message["msg_type"] == "stream":
                outputs[cell] += content["text"]
            elif message["msg_type"] == "error":
                outputs[cell] += content["ename"]
            elif content.get("execution_state") == "idle" and cell == sent[-1]:
                return list(outputs.values())

    def _end_silent(self):
        """Ends the kernel, which says on the standard error where its threads stand."""
        self._process.send_signal(signal.SIGABRT)
        self._process.wait(60)

    def close(self):
        self._client.stop_channels()
        self._process.kill()
        self._process.wait()


def execute(*cells, allow_errors=False):
    """Executes a notebook as a program does. Returns the outputs below each cell."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(made, timeout=240, allow_errors=allow_errors, resources=resources).execute()
    return [cell.outputs for cell in made.cells]


def read(outputs):
    """The outputs below a cell, as a person reads them."""
    return "\n".join(_READ[output.output_type](output) for output in outputs)


_READ = {
    "stream": lambda output: output.text.rstrip("\n"),
    "execute_result": lambda output: f"Out: {output.data['text/plain']}",
    "error": lambda output: re.sub(r"\x1b\[[\d;]*m", "", "\n".join(output.traceback)).lstrip("-\n"),
}
