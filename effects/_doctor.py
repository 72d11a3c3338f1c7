"""`effects doctor`: the facts for a bug report, and a self-test of the library."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx
from effects import _jax, _native
from effects._model.device import PLATFORMS

_PACKAGES = (
    *("jax", "jaxlib", "numpy", "rich", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "libtpu"),
    *("flax", "equinox", "optax", "diffrax", "blackjax", "tqdm", "ipykernel", "pytest"),
)


def _facts() -> Iterator[tuple[str, str]]:
    yield "token-effects", fx.__version__
    package = Path(fx.__path__[0])
    yield "pages", str(next(filter(Path.is_dir, (package / "docs", package.parent / "docs")), "none"))
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    yield "system", f"{platform.platform()}"
    for package in _PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    devices = jax.devices()
    kinds = Counter((device.platform, device.device_kind) for device in devices)
    shown = ", ".join(f"{count} x {name} ({kind})" for (name, kind), count in kinds.items())
    yield "devices", f"{shown}; of {jax.process_count()} process{'es' * (jax.process_count() > 1)}"
    if PLATFORMS["cuda"].records == "native" and (shown := _driver()):
        yield "NVIDIA's driver", shown
    yield "native module", f"{_native.__file__}, interface {_native.wire()['numbers']['interface']}"
    for name in sorted(os.environ):
        if name.startswith(("JAX_", "XLA_", "EFFECTS_")):
            yield name, os.environ[name]
    yield "settings", repr(fx.config)


def _driver() -> str:
    """NVIDIA's driver, and what effects come from its GPUs by. Empty without a driver and a GPU."""
    library, version, why_none = _native.cuda_driver()
    if not version and all(_jax.platform_of(device) != "cuda" for device in jax.devices()):
        return ""
    shown = f"{library}, CUDA {version // 1000}.{version % 1000 // 10}" if version else library
    path = "native handlers" if fx.config.native and not why_none else "JAX's Python callbacks"
    return f"{shown}. {why_none or 'It can be used.'} Effects come from GPUs by {path}."


def _printed(run: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        run()
        fx.effects_barrier(timeout=60)
    return " ".join(output.getvalue().splitlines())


def _prints_in_order() -> str:
    @fx.jit
    def count(n: jax.Array) -> None:
        jax.lax.fori_loop(0, n, lambda i, _: fx.print("{}", i), None)

    found = _printed(lambda: count(jnp.int32(5)))
    return "" if found == "0 1 2 3 4" else f"a loop that prints 0 1 2 3 4 printed {found}"


def _waits_for_answers() -> str:
    @fx.jit
    def ask(x: jax.Array) -> jax.Array:
        return fx.callback(lambda x: x + 1, jax.ShapeDtypeStruct((), np.int32), x)

    answer = int(ask(jnp.int32(41)))
    return "" if answer == 42 else f"a callback that gives 42 gave {answer}"


def _orders_devices() -> str:
    devices = jax.local_devices()
    step = fx.jit(lambda x: fx.print("{}", x))

    def steps() -> None:
        for number in range(8):
            step(jax.device_put(jnp.int32(number), devices[number % len(devices)]))

    found = _printed(steps)
    return "" if found == "0 1 2 3 4 5 6 7" else f"programs that print 0 to 7 on {len(devices)} devices printed {found}"


def _is_imported_here() -> str:
    """Looks where Python looks first for what a program in this folder imports."""
    spec = PathFinder.find_spec("effects", [os.getcwd()])
    if spec is None or spec.origin is None or Path(spec.origin).parent.samefile(fx.__path__[0]):
        return ""  # a folder without `__init__.py` hides no package
    return f"{spec.origin} hides it from programs in this folder. Rename that file or folder"


_CHECKS: dict[str, Callable[[], str]] = {
    "programs in this folder import this library": _is_imported_here,
    "prints in a loop come in order": _prints_in_order,
    "programs wait for callbacks with results": _waits_for_answers,
    "programs on all devices print in the order of their calls": _orders_devices,
}
"""By the property that is tested, a function that returns a description of the failure, or an empty text."""


def run_command(options: argparse.Namespace) -> int:
    """Prints versions, devices, variables, settings and a self-test: as text for a bug report, or as a JSON object."""
    facts = dict(_facts())
    checks = {shows: _what_is_wrong(check) for shows, check in _CHECKS.items()}
    failed = sum(map(bool, checks.values()))
    if options.json:
        print(json.dumps({"facts": facts, "checks": checks}, indent=2))
        return int(failed != 0)
    for name, value in facts.items():
        print(f"{name}: {value}")
    for shows, wrong in checks.items():
        print(f"FAILED: {shows}: {wrong}" if wrong else f"ok: {shows}")
    if failed:
        print(f"{failed} of {len(_CHECKS)} checks failed. All of them pass where the library works. Report this text.")
    return int(failed != 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `effects doctor`."""
    parser.add_argument(
        "--json", action="store_true", help='an object of "facts" and "checks", each with what is wrong'
    )


def _what_is_wrong(check: Callable[[], str]) -> str:
    try:
        return check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
