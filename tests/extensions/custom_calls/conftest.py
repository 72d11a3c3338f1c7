"""The library of handlers that the tests of custom calls use."""

from __future__ import annotations

import ctypes

import pytest

import effects as fx
from tests.extensions.custom_calls.common import HANDLERS
from tests.helpers import build_handlers


@pytest.fixture(scope="module")
def library():
    return ctypes.CDLL(str(build_handlers()))


@pytest.fixture(autouse=True)
def handlers(library):
    for name in HANDLERS:
        fx.register_custom_call(f"test.{name}", (library, name))
