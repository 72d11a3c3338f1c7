"""Programs for NVIDIA's GPUs, with the stand-in for the driver."""

from tests.mutants.slip import Slip

OPERATIONS = "tests/native/cuda_operations_test.cc"
ARRIVALS = "tests/native/cuda_arrivals_test.cc"
FOR_GPUS = "tests/extensions/asynchronous/test_for_gpus.py"

SLIPS = (
    Slip(
        "gpus.failure_ends_no_program",
        "dispatch/native/xla/runtime.cc",
        "  drain().fail(program.thread, program.epoch);\n",
        "",
        "The order waits for a record that a host function could not publish.",
        (f"{OPERATIONS}::test_unknown_tickets_fail_their_program",),
    ),
    Slip(
        "gpus.other_devices_fail_again",
        "dispatch/native/xla/host_failures.cc",
        "    if (!is_known && program.thread != kPlainThread) failed_.push_back(program);\n",
        "",
        "A program that fails on several devices, or twice, raises a failure for each.",
        (f"{OPERATIONS}::test_unknown_tickets_fail_their_program",),
    ),
    Slip(
        "gpus.flag_is_set_before",
        "extensions/cuda/native/launch.cc",
        "  new (to) std::atomic<uint32_t>(0);\n",
        "  new (to) std::atomic<uint32_t>(1);\n",
        "A record is taken for one that has come when it is launched.",
        (f"{ARRIVALS}::test_arrivals_come_in_order",),
    ),
    Slip(
        "gpus.values_stay_whose_ticket_leaves",
        "extensions/asynchronous/ties.py",
        "(user < 0 or eqns[user].primitive is not async_done_p):\n            continue\n",
        "(user < 0 or eqns[user].primitive is not async_done_p):\n            user = None\n",
        "Values of an operation whose ticket goes elsewhere are kept by the function that starts it.",
        (f"{FOR_GPUS}::test_values_whose_ticket_goes_elsewhere_are_kept",),
    ),
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
