"""Calls: what a later one sees, options in pairs, and the work before a first one."""

from tests.mutants.slip import Slip

DISPATCHER = "dispatch/calling/dispatcher.py"
SECOND = ("tests/dispatch/test_second_call.py::test_what_is_new_at_a_later_call",)
STATIC = ("tests/dispatch/test_option_pairs.py::test_pairs_of_options[static-in-_any_number]",)


def _growth(name: str) -> tuple[str, ...]:
    return (f"tests/lowering/test_growth.py::test_work_is_that_of_the_functions[{name}]",)


SLIPS = (
    Slip(
        "calls.orders",
        DISPATCHER,
        "log_capacity_needed or len(runtime.streams.orders) > 1 or",
        "log_capacity_needed or",
        "A function that has been called twice stays in its thread's order, whatever the setting says.",
        ("tests/dispatch/test_quick_calls.py::test_order_that_changes_between_quick_calls",),
    ),
    Slip(
        "calls.failures",
        "dispatch/runtime/failures.py",
        "        native.raise_attention()  # makes the next call look\n",
        "",
        "A function that has been called raises no failure of a program before.",
        SECOND,
    ),
    Slip(
        "calls.handlers",
        "dispatch/runtime/observers.py",
        "            native.raise_attention()\n",
        "",
        "A handler gets no records of callbacks that programs wait for, if there was none at the calls before.",
        ("tests/dispatch/test_quick_calls.py::test_handler_that_is_added_after_calls_that_found_none",),
    ),
    Slip(
        "calls.settings",
        "dispatch/runtime/streams.py",
        "        native.raise_attention()\n",
        "",
        "A function that has been called twice does not wait for its effects when `sync` is set.",
        SECOND,
    ),
    Slip(
        "calls.traces",
        DISPATCHER,
        "_clear_up, STATE_OF_CALLS, jax_tokens",
        "_clear_up, [STATE_OF_CALLS[2]] * 3, jax_tokens",
        "A function that has been called dispatches its program inside of a trace.",
        SECOND,
    ),
    Slip(
        "calls.negative_static",
        "dispatch/calling/programs.py",
        "self._static.isdisjoint((n, n - len(args)))",
        "n not in self._static",
        "A negative number in `static_argnums` is no argument's where one sharding is given for all.",
        STATIC,
    ),
    Slip(
        "calls.negative_shifted",
        "dispatch/calling/programs.py",
        "n + 1 if n >= 0 else n",
        "n + 1",
        "A negative number in `static_argnums` is that of the argument behind.",
        STATIC,
    ),
    Slip(
        "calls.summarized_again",
        "lowering/summary.py",
        "@_jax.weakref_lru_cache\n",
        "",
        "Functions are summarized as often as they are called.",
        _growth("records"),
    ),
    Slip(
        "calls.diverging_again",
        "lowering/shard_map.py",
        "@_jax.weakref_lru_cache\ndef _may_diverge",
        "def _may_diverge",
        "In a region it is found out as often as functions are called whether devices may diverge in them.",
        _growth("regions"),
    ),
    Slip(
        "calls.inside_again",
        "effects/_jax/core.py",
        "if inner not in known}",
        "}",
        "The equations of a region are read as often as functions are called.",
        _growth("branches in regions"),
    ),
)
