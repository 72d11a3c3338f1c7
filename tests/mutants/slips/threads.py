"""Threads: their numbers, the data that they share, and waits that a signal interrupts."""

from tests.mutants.slip import Slip

TABLE = "dispatch/runtime/streams.py"
NUMBERS = "tests/dispatch/test_numbers_of_threads.py"

SLIPS = (
    Slip(
        "threads.number_in_use",
        TABLE,
        "if self._by_thread.setdefault(number, stream) is stream:",
        "if self._by_thread.update({number: stream}) is None:",
        "A thread is given the number of one that lives.",
        (f"{NUMBERS}::test_numbers_are_used_again_while_other_threads_run",),
    ),
    Slip(
        "threads.number_is_named",
        TABLE,
        "(is_reused and self.is_named(number))",
        "(is_reused and False)",
        "What an ended thread's effect has raised is raised by the call of another thread.",
        (f"{NUMBERS}::test_failure_of_an_ended_thread_is_no_later_threads",),
    ),
    Slip(
        "threads.epochs_anew",
        TABLE,
        "                    native.number_anew(number)\n",
        "                    pass\n",
        "Calls of two threads have one place in the order.",
        (f"{NUMBERS}::test_numbers_are_used_again_while_other_threads_run",),
    ),
    Slip(
        "threads.handler_waits",
        "dispatch/runtime/background.py",
        "self._unfinished.release()  # a signal handler may wait for it too",
        "pass",
        "A barrier hangs once the handler of a signal has waited for what it waits for.",
        ("tests/dispatch/test_interrupts.py::test_handler_of_a_signal_waits_for_what_it_interrupts",),
    ),
    Slip(
        "threads.errors_of_handlers",
        "extensions/custom_calls/native/overlay.cc",
        "  std::lock_guard lock(mutex);\n  errors[error] =",
        "  errors[error] =",
        "Handlers that fail on several devices at a time have each other's texts, or crash.",
        ("tests/native/overlay_test.cc::test_errors_of_several_threads",),
    ),
)
