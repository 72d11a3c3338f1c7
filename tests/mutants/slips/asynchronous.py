"""Programs that are not waited for, and asynchronous operations."""

from tests.mutants.slip import Slip

EARLY = "tests/extensions/custom_calls/test_calls_return_early.py"
DEVICES = "tests/extensions/asynchronous/test_several_devices.py"

SLIPS = (
    Slip(
        "asynchronous.no_wait_for_handlers",
        "dispatch/calling/dispatcher.py",
        "                        _wait_for_handlers(stream, domains, self._name)\n",
        "                        pass\n",
        "Handlers of a program on another device do not wait for those of the program before.",
        (f"{EARLY}::test_next_programs_come_after_the_one_that_runs",),
    ),
    Slip(
        "asynchronous.call_is_made_all_the_same",
        "dispatch/calling/dispatcher.py",
        "    if stream.unpolled:\n        runtime.failure_poll.poll_over(stream, runtime.drain.wait)\n",
        "",
        "The next call does not raise what a handler of the program before failed with.",
        (f"{EARLY}::test_next_call_raises_and_is_not_made",),
    ),
    Slip(
        "asynchronous.barrier_does_not_settle",
        "dispatch/runtime/runtime.py",
        "            if unpolled := self._poll(which, names, deadline):\n",
        "            if unpolled := list[str]():\n",
        "The barrier does not wait for handlers that come after the end that their program has published.",
        (f"{EARLY}::test_barrier_waits_for_a_handler_without_an_effect",),
    ),
    Slip(
        "asynchronous.failure_is_settled_twice",
        "dispatch/runtime/streams.py",
        "return self.unpolled.pop(number, None)",
        "return self.unpolled.get(number)",
        "Programs that have been looked at are kept, and their output tokens with them.",
        (f"{EARLY}::test_what_was_settled_is_not_kept",),
    ),
    Slip(
        "asynchronous.done_before_its_start",
        "extensions/asynchronous/host_runs.py",
        "            if not 0 < key.number <= started or key.number in begun:\n",
        "            if True:\n",
        "A done that comes before its start, from a faster device, is refused.",
        (f"{DEVICES}::test_loops_of_the_whole_program_carry_them",),
    ),
    Slip(
        "asynchronous.any_array_is_a_token",
        "lowering/effect.py",
        "        if x.dtype == np.uint32 and x.shape in ((TOKEN_LENGTH,), (REPLICA_TOKEN_LENGTH,)):\n",
        "        if True:\n",
        "In a region over one axis of two, what stands between start and done is taken for a token.",
        (f"{DEVICES}::test_statements_between_in_a_region_over_one_axis_of_two",),
    ),
    Slip(
        "asynchronous.lane_of_a_ticket",
        "extensions/asynchronous/host_runs.py",
        "int(ticket[2]))",
        "0)",
        "What loops take apart of the lanes of a callback is the first lane's.",
        ("tests/extensions/asynchronous/test_lanes_and_turns.py::test_started_and_done_in_lanes_and_turns",),
    ),
    Slip(
        "asynchronous.another_operation",
        "extensions/asynchronous/tickets.py",
        "if was != ends:",
        "if False:",
        "A future may be done as one of another operation.",
        ("tests/extensions/asynchronous/test_checker.py::test_done_as_another_operation",),
    ),
    Slip(
        "asynchronous.type_of_an_operand",
        "extensions/inspecting/text.py",
        "if value.aval != type_:",
        "if False:",
        "An operand that is read may be of another type than its value.",
        ("tests/extensions/inspecting/test_text.py::test_operand_has_the_type_of_its_value",),
    ),
    Slip(
        "asynchronous.region_of_a_future",
        "extensions/asynchronous/tickets.py",
        "if region == self._region or (kept and not region):",
        "if True:",
        "A future that leaves its region is not refused.",
        ("tests/extensions/asynchronous/test_checker.py::test_started_in_a_region_and_done_outside",),
    ),
    Slip(
        "asynchronous.memory_of_a_result",
        "effects/_jax/devices.py",
        "    if placement.memory is not None:\n",
        "    if False:\n",
        "What was copied to the host's memory is in the device's.",
        ("tests/extensions/asynchronous/test_placement.py::test_copies_between_memories",),
    ),
    Slip(
        "asynchronous.barrier_waits_for_what_is_never_done",
        "dispatch/runtime/runtime.py",
        "            if stream.async_caller == PLAIN_THREAD and stream not in streams_here:\n",
        "            if False:\n",
        "A barrier waits for what an asynchronous callback has shown that is never done.",
        ("tests/extensions/asynchronous/test_callbacks.py::test_what_is_never_done_holds_up_no_barrier",),
    ),
    Slip(
        "asynchronous.never_done_is_not_said",
        "dispatch/runtime/runtime.py",
        "        if said := uninterrupted(drain.beside.end_plain):\n",
        '        if said := "":\n',
        "The end of the process keeps back what an asynchronous callback has shown that was never done.",
        ("tests/dispatch/test_exit.py::test_what_was_never_done_is_shown_and_said",),
    ),
)
