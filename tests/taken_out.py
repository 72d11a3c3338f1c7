"""Copies of the product without some of its extensions, and what is asked of their public names."""

from __future__ import annotations

import shutil
from pathlib import Path

import effects as fx
from tests.helpers import ROOT

ASKS_FOR_NAMES = """
import os, re
import effects as fx
import jax.experimental.pallas

assert os.path.realpath(fx.__file__).startswith(os.path.realpath(os.getcwd())), fx.__file__
missing = {}
for module in (fx, fx.asynchronous, fx.extend, fx.kernels, fx.native, fx.testing):
    for name in {*getattr(module, "__all__", vars(module)), *getattr(module, "_LATER", ())}:
        try:
            getattr(module, name)
        except AttributeError as error:
            missing[name] = re.search("needs the extension `(.*)`, which is not installed", str(error))[1]
print(*(f"{name}:{extension}" for name, extension in sorted(missing.items())))
"""
"""Prints each public name that there is not, and the extension that its error names."""


def copy_without(folder: Path, *extensions: str) -> None:
    """Copies the product without these extensions. What is not there in native code is found where it is installed."""
    for package in ("effects", "lowering", "dispatch", "extensions"):
        leave_out = shutil.ignore_patterns("__pycache__", "native", "*.so")
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=leave_out)
    for name in extensions:
        shutil.rmtree(folder / "extensions" / name)


def of_extensions(name: str) -> set[str]:
    """The names of `effects.asynchronous` that are of this extension."""
    homes = fx.asynchronous._LATER.items()
    return {each for each, home in homes if home.startswith(f"effects.extensions.{name}.")}
