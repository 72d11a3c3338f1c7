"""Every test runs with four host devices, and what it left behind is its own."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import contextlib
import io

import jax
import pytest

import effects as fx

pytest_plugins = ["effects_pytest"]


@pytest.fixture
def lines():
    """`lines(f, *args)` calls `f` and returns the lines that it printed, once all are out."""

    def collect(f, *args, **kwargs):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            f(*args, **kwargs)
            fx.effects_barrier(all_threads=True, timeout=120)
        return out.getvalue().splitlines()

    return collect


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory():
    yield
    jax.clear_caches()
