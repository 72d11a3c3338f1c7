"""The command `python -m tests.gpu`: builds the native module in this source tree, and runs tests and benchmarks on the
GPU of this machine. It needs JAX with its plugin for CUDA, a C++ compiler, and no network: packages that are missing
come from a folder of wheels. What each test and benchmark comes to is written at once, and a call that is killed loses
none of it: the next goes on from there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "gpu"
PACKAGES = ("nanobind", "cmake", "ninja", "pytest", "hypothesis")
"""What is needed beside JAX."""
BENCHMARKS = ("dispatch", "pure", "loop", "arrays", "queued", "sync", "log", "overlap")
TESTS = ("tests/gpu/test_on_gpu.py", "tests/extensions/kernels/test_on_gpu.py")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="where the wheels of packages that are missing lie")
    parser.add_argument("--no-build", action="store_true", help="the native module is built already")
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    parser.add_argument("--no-benchmarks", action="store_true", help="test only")
    parser.add_argument("--tests", metavar="EXPRESSION", default="", help="only these tests, as for pytest's `-k`")
    parser.add_argument(
        "--benchmarks", nargs="+", metavar="NAME", default=BENCHMARKS, help=f"only these ({', '.join(BENCHMARKS)})"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        default=BUILD / "results",
        help="where to write what each test and benchmark comes to, as soon as it does (build/gpu/results)",
    )
    parser.add_argument("--go-on", action="store_true", help="leave out what has passed and was measured there")
    parser.add_argument(
        "--minutes", type=float, default=20, help="after so many a command is stopped, and has failed (20)"
    )
    options = parser.parse_args(arguments)
    seconds = 60 * options.minutes
    if not options.no_build:
        _build(options.wheels, seconds)
    folder = options.results.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results = {"doctor": _run(seconds, sys.executable, "-m", "effects", "doctor")}
    pytest = [sys.executable, "-m", "pytest", "-q", "-rs", "--durations", "10", "-p", "no:cacheprovider", "-m", "gpu"]
    pytest += ["-k", options.tests, "-p", "tests.gpu.results", *(["--go-on"] if options.go_on else [])]
    if importlib.util.find_spec("xdist") is not None:
        pytest += ["-p", "xdist", "-n", str(min(8, os.cpu_count() or 1))]
    if not options.no_tests:
        results["tests"] = _run(seconds, *pytest, "--results", folder / "tests.txt", *TESTS)
    benchmark = [sys.executable, "-m", "benchmarks", "--platform", "cuda", "--repeats", "5", "--only"]
    for name in () if options.no_benchmarks else options.benchmarks:
        figures = folder / f"{name}.json"
        if not (options.go_on and figures.exists()):
            results[name] = _run(seconds, *benchmark, name, "--json", figures)
    failed = [name for name, passed in results.items() if not passed]
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall passed")
    return int(bool(failed))


def _build(wheels: Path | None, seconds: float) -> None:
    """Puts the native module into the source tree. As in a wheel, it is of the stable ABI from Python 3.12 on."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        source = () if wheels is None else ("--no-index", "--find-links", wheels.resolve())
        target = ("--target", BUILD / "packages")
        _must(_run(seconds, sys.executable, "-m", "pip", "install", *source, *target, *missing), "install packages")
    asked = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    nanobind = subprocess.run(asked, env=_environment(), capture_output=True, text=True, check=True).stdout.strip()
    settings = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}", "-DCMAKE_BUILD_TYPE=Release"]
    if sys.version_info >= (3, 12):
        settings.append("-DSKBUILD_SABI_COMPONENT=Development.SABIModule")
    native = BUILD / "native"
    _must(_run(seconds, "cmake", "-G", "Ninja", "-S", ROOT, "-B", native, *settings), "configure the native module")
    _must(_run(seconds, "cmake", "--build", native, "--target", "_native"), "build the native module")
    for module in native.glob("_native*.so"):
        shutil.copy(module, ROOT / "effects")


def _must(done: bool, what: str) -> None:
    if not done:
        sys.exit(f"The command could not {what}. What is above says why.")


def _environment() -> dict[str, str]:
    """Several processes share the device, so none takes all of its memory at once."""
    packages = BUILD / "packages"
    tools = Path(sys.executable).parent  # CMake's, for example, which may be newer than the system's
    paths = {"PYTHONPATH": [packages], "PATH": [packages / "bin", tools]}
    return {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # of plugins that happen to be there, whose warnings would be errors
        **os.environ,
        **{name: os.pathsep.join([*map(str, x), os.environ.get(name, "")]) for name, x in paths.items()},
    }


def _run(seconds: float, *command: str | Path) -> bool:
    """Whether a command succeeds, and in time."""
    words = list(map(str, command))
    print(f"\n$ {' '.join(words)}", flush=True)
    try:
        return subprocess.run(words, cwd=ROOT, env=_environment(), timeout=seconds, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"It was still running after {seconds:.0f} s, and was stopped.")
        return False


if __name__ == "__main__":
    sys.exit(main())
