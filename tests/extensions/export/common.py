"""Callbacks that are registered, and what the tests of exported programs share."""

from __future__ import annotations

import numpy as np

import effects as fx
from tests.forks import run_forked


@fx.register_callback("tests.total")
def total(x, *, record=None):
    return np.float32(x.sum())


@fx.register_callback("tests.double")
def double(x):
    return 2 * x


def again(exported):
    """What another process would have."""
    return fx.deserialize(bytes(exported.serialize()))


def run_with(code, data):
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program")
        with open(path, "wb") as file:
            file.write(data)
        return run_forked(code.replace("sys.argv[1]", repr(path)))
