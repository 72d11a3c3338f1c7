"""A pytest plugin: what the installed JAX lacks of its own helpers for tests is taken from the checkout.

A checkout that is not of the installed version may also name settings that this version has no more. They are there
then, and mean nothing. Such a checkout may call what this version deprecates: JAX's tests take warnings for errors, and
these are none.
"""

from __future__ import annotations

from pathlib import Path

import jax._src.pallas
import pytest
from jax._src import config as jax_config

for _package in (jax._src, jax._src.pallas):
    for _folder in Path.cwd().parents:  # tests run in the checkout's `tests/`, or in a folder of it
        _package.__path__.append(str(_folder.joinpath(*_package.__name__.split("."))))

for _name in ("jax_pallas_use_mosaic_gpu",):
    if not hasattr(jax_config, _name):
        state = jax_config.bool_state(_name, default=False, help="A setting of another version of JAX.")
        setattr(jax_config, _name, state)


def pytest_configure(config: pytest.Config) -> None:
    deprecated = r"ignore:(jax\.experimental\.pallas\.|device_id_type).*deprecated:DeprecationWarning"
    config.addinivalue_line("filterwarnings", deprecated)
