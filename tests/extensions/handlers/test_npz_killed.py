"""Files of NumPy's that grow can be read whenever the process that writes them is killed."""

from __future__ import annotations

import io
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import zipfile

import numpy as np

import effects as fx
from tests.extensions.handlers.common import read_npz
from tests.helpers import ROOT
from tests.internals import _growing_zip


class _Torn(io.FileIO):
    """A file that keeps what it was after each page that was written to it."""

    def __init__(self, path, mode="w+b"):
        super().__init__(path, mode)
        self.states = []

    def write(self, data):
        at, size = self.tell(), len(data)
        for end in sorted({*range(-at % 4096, size, 4096), size} - {0}):
            self.seek(at)
            super().write(bytes(data[:end]))
            self.states.append(pathlib.Path(self.name).read_bytes())
        return size


def test_growing_zip_can_be_opened_after_each_page(tmp_path):
    """Wherever a process is killed, the members that were added before are there, and nothing that is no member."""
    random = np.random.default_rng(0)
    file = _Torn(tmp_path / "run.zip")
    archive = _growing_zip.GrowingZip(file)
    members = []
    small = [None, *random.integers(0, 9000, 30).tolist(), None]
    for size in (0, 10, 4000, 100_000, None, 1, 300_000, 65_536, *small, 99_999, 200_000, 111_111):
        name = f"member {len(members)}"
        inner = io.BytesIO()
        if size is None:  # so that the copy of the directory would end with a record that lies in two pages
            inner.write(bytes((10 - (archive._end + 30 + len(name) + archive._size)) % 4096))
        else:
            with zipfile.ZipFile(inner, "w") as content:
                content.writestr("data", random.bytes(size))
        file.states.clear()
        archive.add(name, inner)
        for state in file.states:
            with zipfile.ZipFile(io.BytesIO(state)) as read:
                assert read.namelist() in (members, [*members, name])
        members.append(name)
        with zipfile.ZipFile(file) as read:
            assert read.testzip() is None and read.namelist() == members
    file.close()
    for state, size in itertools.product(file.states, (50_000, 51_000, 52_000)):  # and another process goes on there
        (tmp_path / "cut.zip").write_bytes(state)
        with _Torn(tmp_path / "cut.zip", "r+b") as cut:
            _growing_zip.GrowingZip(cut).add("last", io.BytesIO(bytes(size)))
            for later in cut.states:
                with zipfile.ZipFile(io.BytesIO(later)) as read:
                    assert set(members) - {name} <= set(read.namelist()) <= {*members, "last"}
            with zipfile.ZipFile(cut) as read:
                assert read.testzip() is None and read.namelist()[-1] == "last"


KILLED = """
import itertools, sys
import jax, jax.numpy as jnp
import effects as fx
fx.add_handler(fx.NpzHandler({path!r}, append=True, every=0), "log")
run = fx.jit(lambda first: jax.lax.fori_loop(0, 500, lambda i, _: fx.log("step", i=first + i, x=jnp.ones(20)), None))
for first in itertools.count({first}, 500):
    run(first)
    fx.effects_barrier()
    print(first + 500, flush=True)
"""


def test_npz_of_a_killed_process_has_all_complete_pieces(tmp_path):
    """Whatever it was doing, what it had said was written is there; and another one goes on."""
    path, written = tmp_path / "run.npz", 0
    for lines in (1, 30, 7):
        code = KILLED.format(path=str(path), first=written)
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(lines):
                said = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
        read = read_npz(path)
        written = len(read["step/i"])
        assert written >= said
        np.testing.assert_array_equal(read["step/i"], np.arange(written))
        assert read["step/x"].shape == (written, 20) and read["step/token"].shape == (written, 4)
    assert os.listdir(tmp_path) == ["run.npz"]
    fx.NpzHandler(path, append=True).close()
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["step/i"], np.arange(written))
