"""The programs of `programs.py` and `operations.py` on a GPU of NVIDIA's, where there is one."""

from __future__ import annotations

import gzip
import json

import jax
import pytest

from effects import _jax
from effects import _native as native
from tests.gpu.operations import *  # noqa: F403
from tests.gpu.programs import *  # noqa: F403

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_jax.platform_of(jax.devices()[0]) != "cuda", reason="no GPU of NVIDIA's"),
]


def test_no_stream_is_waited_for(tmp_path):
    """A program with prints synchronizes no more than one without: the profiler sees the driver's functions."""

    def events(name, f):
        with jax.profiler.trace(str(tmp_path / name)):
            f(jnp.int32(100))  # noqa: F405
            fx.effects_barrier()  # noqa: F405
        (file,) = (tmp_path / name).rglob("*.trace.json.gz")
        return [event.get("name", "") for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]]

    def loop(emit):
        return lambda n: jax.lax.fori_loop(0, n, lambda i, x: (emit(i), x + 1)[1], 0)

    plain, printing = jax.jit(loop(lambda i: None)), fx.jit(loop(lambda i: fx.print("{}", i)))  # noqa: F405
    with fx.capture(suppress=True):  # noqa: F405
        for f in (plain, printing):
            jax.block_until_ready(f(jnp.int32(1)))  # noqa: F405
        fx.effects_barrier()  # noqa: F405
        seen = {name: events(name, f) for name, f in (("plain", plain), ("printing", printing))}
    if not any(name.startswith("cu") for name in seen["printing"]):
        pytest.skip("The profiler shows no functions of the driver here.")
    waits = {name: sum("Synchronize" in event for event in names) for name, names in seen.items()}
    assert waits["printing"] <= waits["plain"] + 5, waits  # a few at the end, whichever program it is


def test_handlers_publish():
    """What these tests show is shown of native handlers: the driver is there, and programs call them."""
    library, _, why_none = native.cuda_driver()
    assert not why_none, f"{library}: {why_none}"
    text = fx.jit(lambda x: fx.print("{}", x)).lower(1.0).as_text()  # noqa: F405
    assert "@effects_record" in text


def test_tokens_cost_one_copy():
    """XLA adds nothing to tokens between records and copies none, but the first where several records have it."""

    def program(prints):
        def f(x):
            for _ in range(prints):
                fx.print("{}", x)  # noqa: F405
            return x * 2

        text = fx.jit(f).lower(1.0).compile().as_text()  # noqa: F405
        return [sum(f" = u32[4]{{0}} {of}(" in line for line in text.splitlines()) for of in ("copy", "add", "fusion")]

    assert [program(prints) for prints in (1, 2, 5)] == [[0, 0, 0], [1, 0, 0], [1, 0, 0]]
