"""Programs that are not waited for, and asynchronous operations."""

from tests.mutants.slip import Slip

EARLY = "tests/extensions/custom_calls/test_calls_return_early.py"

SLIPS = (
    Slip(
        "asynchronous.failure_is_settled_twice",
        "dispatch/runtime/streams.py",
        "return self.unpolled.pop(number, None)",
        "return self.unpolled.get(number)",
        "Programs that have been looked at are kept, and their output tokens with them.",
        (f"{EARLY}::test_what_was_settled_is_not_kept",),
    ),
    Slip(
        "asynchronous.lane_of_a_ticket",
        "extensions/asynchronous/host_runs.py",
        "int(ticket[2]))",
        "0)",
        "What loops take apart of the lanes of a callback is the first lane's.",
        ("tests/extensions/asynchronous/test_lanes_and_turns.py::test_started_and_done_in_lanes_and_turns",),
    ),
)
