"""Calls: what a later one sees, options in pairs, and the work before a first one."""

from tests.mutants.slip import Slip

STATIC = ("tests/dispatch/test_option_pairs.py::test_pairs_of_options[static-in-_any_number]",)


def _growth(name: str) -> tuple[str, ...]:
    return (f"tests/lowering/test_growth.py::test_work_is_that_of_the_functions[{name}]",)


SLIPS = (
    Slip(
        "calls.negative_static",
        "dispatch/calling/programs.py",
        "self._static.isdisjoint((n, n - len(args)))",
        "n not in self._static",
        "A negative number in `static_argnums` is no argument's where one sharding is given for all.",
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
)
