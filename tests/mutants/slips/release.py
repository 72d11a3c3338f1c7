"""The release order: what leaves when, and when an epoch ends."""

from tests.mutants.slip import Slip

ORDER = "dispatch/native/order/release_order.cc"
EPOCH = "dispatch/native/order/release_order.cc"
TEST, PLAIN = "tests/native/order_test.cc", "tests/native/order_plain_test.cc"
SUSPENSION = "tests/native/order_suspension_test.cc"
RANDOM = "tests/native/order_random_test.cc::test_random_deliveries_leave_in_program_order"

SLIPS = (
    Slip(
        "release.suspended",
        ORDER,
        "return &stream.epochs.front() == &epoch && !stream.is_suspended(domain) &&",
        "return &stream.epochs.front() == &epoch &&",
        "Records leave while functions of an earlier one run.",
        ("tests/native/order_suspension_test.cc::test_suspended_stream_waits_for_its_resumption",),
    ),
    Slip(
        "release.oldest_epoch",
        ORDER,
        "return &stream.epochs.front() == &epoch && !stream.is_suspended(domain) &&",
        "return !stream.is_suspended(domain) &&",
        "A program's records leave before those of the program that was called before it.",
        (RANDOM,),
    ),
    Slip(
        "release.domains",
        ORDER,
        "Sequence &sequence = sequence_of(*epoch, header.token);\n"
        "  if (sequence.is_due(header) && may_leave(*epoch, domain)) {",
        "Sequence &sequence = epoch->domains[0];\n  if (sequence.is_due(header) && may_leave(*epoch, domain)) {",
        "All order domains of a program share one sequence.",
        (RANDOM,),
    ),
    Slip(
        "release.gap_behind",
        EPOCH,
        "const uint64_t count = range.count - behind;",
        "const uint64_t count = range.count;",
        "A gap that has been passed in part covers records that are yet to come.",
        ("tests/native/order_gaps_test.cc::test_overlapping_gaps_count_once",),
    ),
    Slip(
        "release.plain_waits",
        ORDER,
        "return &it.second != &plain_ && !it.second.nested && it.second.is_behind(epoch.dispatch);",
        "return false;",
        "An effect of a program of JAX's comes ahead of programs that were dispatched before it.",
        (RANDOM,),
    ),
    Slip(
        "release.later_epoch",
        ORDER,
        "return left.count(domain) == 0 && !stream",
        "return !stream",
        "A record of a later program leaves ahead of what its domain has in an earlier one.",
        (f"{SUSPENSION}::test_other_domains_go_on",),
    ),
    Slip(
        "release.plain_waits_for_a_while",
        ORDER,
        "return !is_overdue(epoch) && std::any_of(",
        "return std::any_of(",
        "Programs of `fx.jit` and `jax.jit` wait for each other for good.",
        (f"{PLAIN}::test_plain_epoch_waits_for_a_while",),
    ),
    Slip(
        "release.failed_in_order",
        ORDER,
        "(region != sequence.regions.end() && region->first < first->second.header.token.phase)) {",
        "(region != sequence.regions.end() && region->first > first->second.header.token.phase)) {",
        "What a failed program's region has left leaves behind what comes after the region.",
        ("tests/native/region_test.cc::test_failed_program",),
    ),
    Slip(
        "release.copy_of_an_answer",
        ORDER,
        "return header.reply == 0; // a device's copy; if it awaits an answer, that has been given",
        "return true;",
        "A device that asks again for what has been answered waits for ever.",
        (f"{TEST}::test_accept_of_what_has_left",),
    ),
)
