"""Failures: each is raised once, by whom it concerns."""

from tests.mutants.slip import Slip

FILE = "dispatch/draining/failures.py"
EARLIER = "tests/dispatch/test_earlier_failures.py"
INTERRUPTS = "tests/dispatch/test_interrupts.py"
ERRORS = "tests/effects/test_errors.py"

SLIPS = (
    Slip(
        "failures.other_threads",
        FILE,
        "if threads is None or self._is_for(key, threads, *taker):",
        "if True:",
        "A barrier raises what another thread's programs have raised.",
        (f"{ERRORS}::test_a_thread_gets_its_own_errors",),
    ),
    Slip(
        "failures.process_order",
        FILE,
        "return key[0] in threads and (thread is None or thread is taker)",
        "return key[0] in threads",
        'With `order="process"` a barrier raises what another thread\'s programs have raised.',
        ("tests/effects/test_errors_elsewhere.py::test_error_is_raised_in_the_thread_that_called",),
    ),
    Slip(
        "failures.call_raises_nothing",
        "dispatch/calling/dispatcher.py",
        'if config.errors == "next_call":',
        "if False:",
        "A failure is silent until the barrier.",
        (f"{EARLIER}::test_next_call_raises",),
    ),
    Slip(
        "failures.call_raises_for_others",
        FILE,
        "if self._is_own(key, {thread}, taker) and (taken := self._take(key)):",
        "if taken := self._take(key):",
        "A call raises what programs of other threads failed with.",
        (f"{EARLIER}::test_threads_raise_their_own",),
    ),
    Slip(
        "failures.call_raises_all",
        FILE,
        "self._raise(lambda: self._take_first(thread, taker))",
        "self._raise(lambda: self.take({thread}))",
        "A call raises what several programs failed with, as a group.",
        (f"{EARLIER}::test_each_call_raises_what_one_program_failed_with",),
    ),
    Slip(
        "failures.each_is_logged",
        FILE,
        "        program.logged = True\n",
        "",
        "Every failure of a program is logged.",
        (f"{EARLIER}::test_only_the_first_failure_of_a_program_is_logged",),
    ),
    Slip(
        "failures.logged_once_for_all",
        FILE,
        "            self._logged.pop(owner, None)\n",
        "            pass\n",
        "A line that fails again after its failure was raised is not logged.",
        (f"{EARLIER}::test_each_line_is_logged_once_until_its_failures_are_raised",),
    ),
    Slip(
        "failures.raised_twice",
        FILE,
        "program = self.programs.pop(key)\n",
        "program = self.programs[key]\n",
        "Each barrier raises the same errors again.",
        (f"{ERRORS}::test_each_error_is_raised_once_and_several_as_a_group",),
    ),
    Slip(
        "failures.left_by_interrupt",
        "dispatch/draining/barrier.py",
        "    finish_interrupted()\n",
        "",
        "A barrier returns while a failure is taken for one that was interrupted.",
        (f"{INTERRUPTS}::test_failure_that_is_being_taken_when_the_barrier_is_interrupted_is_raised_by_the_next",),
    ),
    Slip(
        "failures.traces_left",
        "effects/_jax/traces.py",
        "    core.trace_ctx.reset()\n",
        "    pass\n",
        "An interrupt leaves a trace of JAX's behind, and what the thread computes then becomes a part of it.",
        (f"{INTERRUPTS}::test_interrupt_leaves_no_trace_of_jax_behind",),
    ),
    Slip(
        "failures.second_interrupt",
        "effects/_jax/tracebacks.py",
        "finally:  # once more: another interrupt may have ended the first\n                    leave_traces()",
        "finally:\n                    pass",
        "A second interrupt leaves a trace of JAX's behind.",
        (f"{INTERRUPTS}::test_second_interrupt_leaves_no_trace_of_jax_behind",),
    ),
    Slip(
        "failures.ends_of_children",
        "dispatch/draining/ending.py",
        "    if processes is None or processes.parent_process() is None:",
        "    if processes is None or True:",
        "A child of `multiprocessing` ends without its effects.",
        ("tests/dispatch/test_multiprocessing.py::test_effects_of_a_child_are_shown_when_its_function_returns",),
    ),
    Slip(
        "failures.of_the_call",
        FILE,
        "if program.awaited is not None and self._raises_at_call(key):",
        "if program.awaited is not None and not self._raises_at_call(key):",
        "What ended a program whose call has returned is never raised.",
        (f"{ERRORS}::test_plain_jit_fails_with_the_text_and_says_the_whole_at_the_barrier",),
    ),
    Slip(
        "failures.more",
        FILE,
        "                program.more += 1\n",
        "                pass\n",
        "Failures beyond the first hundred of a program are not told of.",
        (f"{ERRORS}::test_many_errors_of_one_program_are_counted",),
    ),
    Slip(
        "failures.before",
        FILE,
        "program.awaited, program.before = failure, before",
        "program.awaited, program.before = failure, 0",
        "An error does not say how many effects of its program came before it.",
        (f"{ERRORS}::test_error_of_a_sync_callback_says_what_became_of_the_rest",),
    ),
    Slip(
        "failures.end_program",
        "dispatch/native/drain/replies.cc",
        "    ended_.insert({thread, epoch});\n",
        "",
        "A device that asks after its program has been ended waits for an answer for ever.",
        ("tests/native/replicated_replies_test.cc::test_end_program",),
    ),
)
