"""Programs for NVIDIA's GPUs, with the stand-in for the driver."""

from tests.mutants.slip import Slip

FOR_GPUS = "tests/extensions/asynchronous/test_for_gpus.py"

SLIPS = (
    Slip(
        "gpus.values_never_stay",
        "extensions/asynchronous/ties.py",
        "is_local=True)",
        "is_local=False)",
        "Values go to the host's memory and back though start and done stand in one function.",
        (f"{FOR_GPUS}::test_values_of_one_function_stay_in_the_program",),
    ),
    Slip(
        "gpus.numbers_of_processes",
        "effects/_model/device.py",
        "get(number - first, number - first)",
        "get(number, number - first)",
        "A record of another process's GPU names a device of the first process.",
        ("tests/gpu/test_device_numbers.py::test_gpus_of_several_processes",),
    ),
)
