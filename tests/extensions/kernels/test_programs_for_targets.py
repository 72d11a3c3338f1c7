"""Programs around compiled kernels with effects, lowered for devices that are not here: what publishes the logs."""

from __future__ import annotations

import inspect
import re

import jax
import pytest

import effects as fx
from effects import _jax
from tests.extensions.kernels.test_targets import TARGETS, X, call, k_loop, lower, platform_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated"),
]

JITS = pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])


def _program(target):
    """A program with a kernel between two prints, and its platform."""

    def f(x):
        fx.print("before")
        x = call(k_loop, TARGETS[target][1], x)
        fx.print("after")
        return x

    return f, TARGETS[target][0]


@pytest.fixture
def any_device(monkeypatch):
    """JAX asks the devices of a platform for its callbacks. Those of the CPU answer for all.

    So a GPU is there to call handlers, and its driver is not.
    """
    client = jax.devices()[0].client
    monkeypatch.setattr(_jax.mlir.ModuleContext, "get_backend", lambda *_, **__: client)


@JITS
@pytest.mark.parametrize("target", TARGETS)
def test_log_is_published_behind_its_kernel(target, jit, any_device):
    """A callback of JAX's takes the log, a row for each program, behind the kernel and between those of the prints."""
    f, platform = _program(target)
    text = lower(f, platform, X, jit=jit)
    kernel = {"triton": "triton", "tpu": "tpu_custom_call"}[target]
    publish = r'stablehlo.send"' if platform == "tpu" else "@xla_ffi_python_gpu_callback"
    called = [line for line in text.splitlines() if re.search(rf"custom_call @\S*{kernel}|{publish}", line)]
    kinds = [
        "log"
        if re.search(r"tensor<4x\d+xi32>", line) and re.search(publish, line)
        else "kernel"
        if kernel in line and not re.search(publish, line)
        else "print"
        for line in called
    ]
    at = kinds.index("log")
    assert kinds.count("log") == kinds.count("kernel") == 1
    assert kinds.index("kernel") < at and "print" in kinds[: kinds.index("kernel")] and "print" in kinds[at:]


@JITS
@pytest.mark.parametrize("target", [target for target in TARGETS if target != "tpu"])
def test_handler_takes_the_log(target, jit):
    """For a GPU that is not here a handler takes the log, a row for each program, behind the kernel and between the
    prints."""
    f, platform = _program(target)
    text = lower(f, platform, X, jit=jit)
    kinds = re.findall(r"custom_call @\S*(effects_\w+|triton)\S*\(", text)
    kernel = next(kind for kind in kinds if not kind.startswith("effects"))
    record = "effects_record" if jit is fx.jit else "effects_plain"
    assert kinds == [record, kernel, record, record]
    assert re.search(rf"@{record}\(.*tensor<4x\d+xi32>", text)


@JITS
def test_platforms_without_a_device_are_refused(jit):
    """JAX makes callbacks only for devices that are there: the error says so at the user's line, and what to do."""
    f, platform = _program("tpu")
    line = inspect.getsourcelines(_program)[1] + 4
    place = rf"Effect `print` at .*test_programs_for_targets\.py:{line} "
    with pytest.raises(
        NotImplementedError, match=rf"^{place}.*lowered for {platform}.*callbacks.*fx\.export\(f"
    ) as error:
        lower(f, platform, X, jit=jit)
    assert str(error.value).partition(" See docs")[0].count(". ") == 2


@pytest.mark.parametrize("target", TARGETS)
def test_export(target):
    """A program may be exported for a platform without a device: its handlers have their places there."""
    f, platform = _program(target)
    checks = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
    with platform_of(platform):
        exported = fx.export(fx.jit(f), platforms=[platform], disabled_checks=checks)(X)
    text = exported.mlir_module()
    assert text.count("custom_call @effects_record") == 3
    assert re.search(r"@effects_record.*tensor<4x\d+xi32>", text)
