"""Programs without effects: which calls are theirs, and what comes before these."""

from tests.mutants.slip import Slip

PROGRAMS, DISPATCHER = "dispatch/calling/programs.py", "dispatch/calling/dispatcher.py"


def _in(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/dispatch/test_plain_programs.py::test_{name}" for name in names)


NESTED = "tests/effects/callback/test_nested.py"

SLIPS = (
    Slip(
        "plain.trace_waits_for_itself",
        "dispatch/calling/eager.py",
        "if site.results is not None and runtime.streams.current().dispatching:",
        "if False:",
        "A callback that a trace waits for comes after the program that is traced.",
        (f"{NESTED}::test_a_trace_may_wait_for_a_callback",),
    ),
    Slip(
        "plain.effects_of_some_arguments",
        PROGRAMS,
        "return _jax.runs_now() and not self._has_effects(args, kwargs)",
        "return _jax.runs_now()",
        "What has had no effects for some arguments has none for others.",
        _in("effects_for_some_arguments_fail_in_their_function"),
    ),
    Slip(
        "plain.called_with_tokens",
        PROGRAMS,
        "lambda args, kwargs: self._has_effects(args[1:], kwargs),",
        "lambda args, kwargs: True,",
        "A function without effects is called with tokens.",
        _in("calls_enter_few_frames"),
    ),
    Slip(
        "plain.kept_alive",
        PROGRAMS,
        "known[key] = Programs(weakref.ref(fun), fun, options)",
        "known[key] = Programs(lambda: fun, fun, options)",
        "The programs of a function keep it alive.",
        _in("functions_are_freed"),
    ),
    Slip(
        "plain.of_this_function_only",
        PROGRAMS,
        "    if key not in known:\n",
        "    if True:\n",
        "A function is compiled once for each `fx.jit` of it.",
        _in("each_kind_is_traced_and_compiled_once"),
    ),
    Slip(
        "plain.earlier_failures",
        DISPATCHER,
        "                if stream.unpolled or runtime.failures.programs:\n"
        "                    _raise_earlier(streams.current(), self._name)\n",
        "",
        "A call without effects does not raise what failed before it.",
        _in("earlier_failure_is_raised"),
    ),
    Slip(
        "plain.found_once_more",
        DISPATCHER,
        "        self._set_plain(True)\n",
        "        pass\n",
        "Each call of a function without effects is taken for one that has them.",
        _in("calls_enter_few_frames"),
    ),
)
