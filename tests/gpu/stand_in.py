"""A plugin for pytest: programs on CPUs count by themselves and call CUDA's handlers, with a stand-in for the driver.

`python -m pytest -p tests.gpu.stand_in ...` runs any tests so. That shows that lowering, handlers, drain and Python go
together. About a device it shows nothing: the stand-in's memory is the host's, and its streams are threads.
"""

from __future__ import annotations

import os

from tests.environment import environment

os.environ.update(environment())  # before JAX is imported

import ctypes
import functools
from typing import Any

import jax

from tests.gpu.library import build_stand_in

MSG_COMPLAINTS = "The stand-in for the driver complains:\n{complaints}"


@functools.cache
def library() -> ctypes.CDLL:
    """The stand-in that this process has, with what makes handlers of a CPU of those of CUDA."""
    loaded = ctypes.CDLL(str(build_stand_in("on_cpu.cc")))
    loaded.StandIn_Complaints.restype = ctypes.c_char_p
    loaded.OnCpu_Wrap.restype, loaded.OnCpu_Wrap.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return loaded


def complaints() -> str:
    """What the stand-in has seen that must not be."""
    return library().StandIn_Complaints().decode()


def take_the_place_of_cpus() -> None:
    """From now on, in a process that has not imported `effects` yet."""
    register, handlers, types = jax.ffi.register_ffi_target, {}, {}

    def collect(name: str, stages: Any, platform: str = "cpu", **options: Any) -> None:
        handlers.setdefault(name, {})[platform] = (stages, options)

    def collect_type(name: str, registration: Any, platform: str = "cpu") -> None:
        types[name, platform] = registration

    register_type = jax.ffi.register_ffi_type
    jax.ffi.register_ffi_target, jax.ffi.register_ffi_type = collect, collect_type
    try:
        import effects  # noqa: F401
        from effects._model.device import PLATFORMS
        from effects._model.wire import FIRST_GPU
        from effects.extensions.custom_calls.targets import _register_ours

        _register_ours("cuda")
    finally:
        jax.ffi.register_ffi_target, jax.ffi.register_ffi_type = register, register_type
    library()  # before anything looks for the driver
    for (name, platform), registration in types.items():
        register_type(name if platform == "cpu" else f"{name}_on_{platform}", registration, platform="cpu")
    for name, given in handlers.items():
        stages, options = given.get("CUDA", given.get("cpu"))
        if "CUDA" in given and given["CUDA"] is not given.get("cpu"):
            stages = {stage: _on_cpu(capsule) if stage == "execute" else capsule for stage, capsule in stages.items()}
        register(name, stages, platform="cpu", **options)
    PLATFORMS["cpu"] = PLATFORMS["cpu"]._replace(tokens_on_host=False, first_device=FIRST_GPU)


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _on_cpu(capsule: Any) -> Any:
    """The handler of a CPU that calls this one with a stream."""
    wrapped = library().OnCpu_Wrap(_pointer(capsule, _name(capsule)))
    assert wrapped, "There are more handlers than on_cpu.cc has room for."
    return _capsule(wrapped, None, None)


def pytest_sessionfinish(session: Any) -> None:
    if found := complaints():
        print(MSG_COMPLAINTS.format(complaints=found))
        session.exitstatus = 1


take_the_place_of_cpus()
