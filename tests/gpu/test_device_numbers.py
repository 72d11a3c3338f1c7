"""Which device a record names, from the numbers that handlers have. GPUs of several processes are made up here."""

from __future__ import annotations

from typing import NamedTuple

import jax
import pytest

from effects import _jax
from effects._model.device import device_number, device_place, places_are_plain
from effects._model.wire import ALL_DEVICES, FIRST_GPU


class Client:
    _raw_platform = "cuda"


class Gpu(NamedTuple):
    id: int
    process_index: int
    local_hardware_id: int
    client: Client = Client()
    platform: str = "gpu"


@pytest.fixture
def gpus(monkeypatch):
    """`gpus(devices, process)`: these are JAX's GPUs, and this the process."""
    cpus = jax.devices("cpu")

    def use(devices, process=0):
        monkeypatch.setattr(jax, "devices", lambda platform=None: cpus if platform == "cpu" else devices)
        monkeypatch.setattr(jax, "process_index", lambda: process)
        monkeypatch.setattr(jax, "process_count", lambda: 1 + max(device.process_index for device in devices))
        _jax.device_places.cache_clear()

    yield use
    _jax.device_places.cache_clear()


def test_places_of_cpus():
    """In a process by itself a number is the place."""
    assert [device_place(device_number(device)) for device in jax.devices()] == [0, 1, 2, 3]
    assert device_place(ALL_DEVICES) == -1 and places_are_plain()


def test_gpus_of_several_processes(gpus):
    """XLA numbers them in each process from 0 on; a record's device is its place among all."""
    devices = [Gpu(2 * process + i, process, i) for process in range(3) for i in range(2)]
    gpus(devices, process=1)
    own = [device for device in devices if device.process_index == 1]
    numbers = [device_number(device) for device in own]
    assert numbers == [FIRST_GPU, FIRST_GPU + 1] and [device_place(number) for number in numbers] == [2, 3]
    assert not places_are_plain()
    assert device_place(ALL_DEVICES) == -1 and device_place(jax.devices("cpu")[1].id) == 1


def test_gpus_of_which_some_are_visible(gpus):
    """A process that sees only the third one has one device, and XLA calls it by its number of the machine."""
    gpus([Gpu(0, 0, 2)])
    assert device_place(FIRST_GPU + 2) == 0 and not places_are_plain()


def test_gpus_of_one_process(gpus):
    """Numbers say it, so that native code may show devices."""
    gpus([Gpu(i, 0, i) for i in range(4)])
    assert [device_place(FIRST_GPU + i) for i in range(4)] == [0, 1, 2, 3] and places_are_plain()
