"""The variables with which an interpreter has the simulated GPUs."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.helpers import build_once

FOLDER = Path(__file__).parent
NAMES = {
    "libcuda.so.1": (
        *("driver.cc", "driver_memory.cc", "driver_kernels.cc", "driver_graphs.cc", "machine.cc"),
        *("ptx.cc", "block.cc", "compute.cc"),
    ),
    "libnccl.so.2": ("collectives.cc",),
    "libcudart.so.13": ("others.cc",),
    "libcudnn.so.9": ("others.cc",),
    "libnvidia-ml.so.1": ("others.cc",),
}
"""NVIDIA's libraries, as XLA opens them, and what the simulated ones are made of."""

FLAGS = (
    "--xla_gpu_autotune_level=0 --xla_gpu_enable_libnvptxcompiler=false "
    "--xla_gpu_enable_libnvjitlink=false --xla_gpu_cuda_data_dir={toolkit}"
)
"""XLA has kernels assembled by a command, which leaves them as they are."""

MSG_NO_PLUGIN = "JAX {version} has no plugin for CUDA here. `EFFECTS_CUDA_PLUGIN` may name the folder that it is in."


class NoPlugin(Exception):
    """JAX's plugin for CUDA is not there."""


def environment(gpus: int) -> dict[str, str]:
    """Builds the machine, and gives the variables. Raises NoPlugin.

    XLA's flags of this interpreter are left out, since they are chosen for CPUs.
    """
    plugin = _plugin()
    libraries = _libraries()
    paths = [str(FOLDER / "site"), str(plugin), os.environ.get("PYTHONPATH", "")]
    return {
        "SIMULATED_GPUS": str(gpus),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH")])),
        "XLA_FLAGS": FLAGS.format(toolkit=_toolkit(libraries, plugin)),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_PLATFORMS": "cuda,cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),  # XLA misses libraries
    }


def _plugin() -> Path:
    """The folder that has JAX's plugin, of JAX's version."""
    version = importlib.metadata.version("jaxlib")
    for folder in filter(None, (os.environ.get("EFFECTS_CUDA_PLUGIN"), *sys.path)):
        found = importlib.metadata.distributions(name="jax-cuda13-pjrt", path=[folder])
        if any(one.version == version for one in found):
            return Path(folder)
    raise NoPlugin(MSG_NO_PLUGIN.format(version=version))


@functools.cache
def _libraries() -> Path:
    """The folder of the simulated libraries."""
    flags, headers = ["-O2", "-shared", "-fPIC", "-pthread"], [*FOLDER.glob("*.h")]

    def build(name: str, *against: Path) -> Path:
        main, *others = (FOLDER / source for source in NAMES[name])
        included = [*map(str, others), *map(str, against)]
        return build_once(main, [*flags, f"-Wl,-soname,{name}"], included, [*others, *headers])

    driver = build("libcuda.so.1")
    built = {name: driver if name == "libcuda.so.1" else build(name, driver) for name in NAMES}
    folder = driver.with_suffix(".libraries")
    folder.mkdir(exist_ok=True)
    with _alone(folder):
        for name, library in built.items():
            _link(folder / name, library)
    return folder


def _toolkit(libraries: Path, plugin: Path) -> Path:
    """What XLA takes for NVIDIA's toolkit: an assembler that leaves text as it is, and the library of functions for
    devices, if it is anywhere. Programs without `sin` and the like do without."""
    folder = libraries / "toolkit"
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _link(folder / "bin" / "ptxas", FOLDER / "ptxas")
        for found in _functions(plugin):
            _link(folder / "nvvm", found)
    return folder


def _functions(plugin: Path) -> Iterator[Path]:
    """Where they may be, the best place last."""
    roots = Path("/usr/local/cuda"), plugin / "toolkit" / "nvidia" / "cu13"
    return (found for root in roots if (found := root / "nvvm").exists())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Other processes wait meanwhile."""
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target)
