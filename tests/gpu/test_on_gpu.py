"""The programs of `tests/gpu/programs.py` on a GPU of NVIDIA's, where there is one. None has run them yet."""

from __future__ import annotations

import jax
import pytest

from effects import _jax
from effects import _native as native
from tests.gpu.programs import *  # noqa: F403

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_jax.platform_of(jax.devices()[0]) != "cuda", reason="no GPU of NVIDIA's"),
]


def test_handlers_publish():
    """What these tests show is shown of native handlers: the driver is there, and programs call them."""
    library, _, why_none = native.cuda_driver()
    assert not why_none, f"{library}: {why_none}"
    text = fx.jit(lambda x: fx.print("{}", x)).lower(1.0).as_text()  # noqa: F405
    assert "@effects_record" in text and "output_operand_aliases" in text
