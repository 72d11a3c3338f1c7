"""The kernel that brings records to the host: its text is run here thread by thread, and taken by NVIDIA's assembler
where there is one. No device has run it yet."""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess

import pytest

from tests.gpu.ptx import Kernel
from tests.helpers import ROOT

SOURCES = ROOT / "extensions" / "cuda" / "native"
MOST_COPIES = 8
FLAG = 0x7000


def text():
    found = re.search(r'R"\((.*?)\)"', (SOURCES / "kernel.cc").read_text(), re.S)
    assert found is not None
    return found[1]


def work(flag, copies):
    """As native code lays it out: KernelWork."""
    padded = [*copies, *[(0, 0, 0)] * (MOST_COPIES - len(copies))]
    return struct.pack("<QII", flag, len(copies), 0) + b"".join(struct.pack("<QQII", *copy, 0) for copy in padded)


def test_text_is_what_native_code_takes_it_for():
    """Name, size of the parameters, and what one thread's block is."""
    header = (SOURCES / "kernel.h").read_text()
    kernel = Kernel(text())
    assert f'kKernelName[] = "{kernel.name}"' in header
    assert f"sizeof(KernelWork) == {kernel.parameter_size}" in header
    assert f"kMostCopies = {MOST_COPIES};" in header


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("threads", [1, 4, 128])
def test_all_bytes_are_copied_before_the_flag_is_set(seed, threads):
    """Whatever the sizes and places are, and no other byte is written."""
    rng = random.Random(seed)
    memory, copies, expected = {}, [], {}
    for i in range(rng.randint(0, MOST_COPIES)):
        size = rng.choice([0, 1, 3, 4, 8, 16, 31, 64, 600, rng.randint(1, 900)])
        source, to = 0x100000 * (i + 1) + rng.choice([0, 0, 1, 2, 4]), 0x8000 + 0x400 * i
        for at in range(size):
            memory[source + at] = expected[to + at] = rng.randrange(256)
        copies.append((source, to, size))
    before, behind = Kernel(text()).run(work(FLAG, copies), memory, threads)
    assert dict(before) == expected and len(before) == len(expected)
    assert behind == [(FLAG, 1), *((FLAG + i, 0) for i in (1, 2, 3))]


@pytest.mark.parametrize(
    "change, complaint",
    [
        ("COPIED:\n  membar.sys;", "may not be there"),
        ("  bar.sync 0;", "several"),
        ("shl.b32 %r9, %r2, 2;", "KeyError"),
    ],
    ids=["no fence", "no barrier", "no step"],
)
def test_slips_are_noticed(change, complaint):
    """The interpreter sees a text without a fence, without a barrier, or without an instruction."""
    kernel = Kernel(text().replace(change, "COPIED:" if change.startswith("COPIED") else ""))
    copies = [(0x100000, 0x8000, 64)]
    memory = {0x100000 + i: i for i in range(64)}
    try:
        written = kernel.run(work(FLAG, copies), memory, 4)
    except (AssertionError, KeyError) as error:
        assert complaint in f"{type(error).__name__} {error}"
    else:
        assert len(written) == 1 and complaint == "several"  # copies and the flag in no order


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="NVIDIA's assembler is not here")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_nvidias_assembler_takes_it(tmp_path, architecture):
    """For the devices of today, without memory for registers."""
    source = tmp_path / "kernel.ptx"
    source.write_text(text())
    command = ["ptxas", "-arch", architecture, "-v", str(source), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores" in done.stderr
