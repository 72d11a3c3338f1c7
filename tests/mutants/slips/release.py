"""The release order: what leaves when, and when an epoch ends."""

from tests.mutants.slip import Slip

ORDER = "dispatch/native/order/release_order.cc"
EPOCH = "dispatch/native/order/release_order.cc"
TEST, PLAIN = "tests/native/order_test.cc", "tests/native/order_plain_test.cc"

SLIPS = (
    Slip(
        "release.one_more_scan",
        ORDER,
        "if (scan_ <= epoch.ended_scan + 1) {",
        "if (scan_ < epoch.ended_scan + 1) {",
        "An epoch ends while an unordered record of it may be in a ring that the scan has passed.",
        (f"{TEST}::test_close_waits_for_one_more_scan",),
    ),
    Slip(
        "release.complete",
        EPOCH,
        "if (sequence.phase != last.phase || static_cast<uint32_t>(sequence.next) != last.index) return false;",
        "if (sequence.phase != last.phase) return false;",
        "An epoch ends before its last records have come.",
        (f"{TEST}::test_close_before_its_records_keeps_the_epoch_open",),
    ),
    Slip(
        "release.suspended",
        ORDER,
        "if (&stream.epochs.front() != &epoch || stream.is_suspended()) return false;",
        "if (&stream.epochs.front() != &epoch) return false;",
        "Records leave while functions of an earlier one run.",
        ("tests/native/order_suspension_test.cc::test_suspended_stream_waits_for_its_resumption",),
    ),
    Slip(
        "release.oldest_epoch",
        ORDER,
        "if (&stream.epochs.front() != &epoch || stream.is_suspended()) return false;",
        "if (stream.is_suspended()) return false;",
        "A program's records leave before those of the program that was called before it.",
        (f"{TEST}::test_later_epoch_waits_for_the_earlier",),
    ),
    Slip(
        "release.primary",
        ORDER,
        "if (epoch->primary != header.device) {",
        "if (epoch->primary > header.device) {",
        "Unordered records that all devices publish are shown once for some devices more.",
        (f"{TEST}::test_replicated_unordered_records_leave_once",),
    ),
    Slip(
        "release.domains",
        ORDER,
        "Sequence &sequence = epoch->domains[DomainOf(header.token)];\n"
        "  if (sequence.is_due(header) && may_leave(*epoch)) {",
        "Sequence &sequence = epoch->domains[0];\n  if (sequence.is_due(header) && may_leave(*epoch)) {",
        "All order domains of a program share one sequence.",
        (f"{TEST}::test_domains_count_for_themselves",),
    ),
    Slip(
        "release.longer_gap",
        EPOCH,
        "it->second.gap_count = std::max(it->second.gap_count, count);",
        "it->second.gap_count = count;",
        "Of two gaps that begin at one index the shorter may count, and what only the other covers is waited for.",
        ("tests/native/order_gaps_test.cc::test_gaps_from_one_index",),
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
        (f"{PLAIN}::test_plain_epoch_waits_for_earlier_dispatches",),
    ),
    Slip(
        "release.plain_is_waited_for",
        ORDER,
        "return stream.nested || !plain_.is_behind(epoch.dispatch);",
        "return true;",
        "A program's record leaves ahead of an effect of a program of JAX's from before its dispatch.",
        (f"{PLAIN}::test_program_waits_for_earlier_plain_epochs",),
    ),
    Slip(
        "release.plain_waits_for_a_while",
        ORDER,
        "return is_overdue(epoch) || std::none_of(",
        "return std::none_of(",
        "Programs of `fx.jit` and `jax.jit` wait for each other for good.",
        (f"{PLAIN}::test_plain_epoch_waits_for_a_while",),
    ),
    Slip(
        "release.awaited_passes",
        ORDER,
        "  let_awaited_pass(release);\n",
        "",
        "A callback in a program of JAX's that waits for another such callback waits for good.",
        (f"{PLAIN}::test_awaited_plain_record_passes_functions",),
    ),
    Slip(
        "release.awaited_passes_alone",
        ORDER,
        "if (is_awaited(*it)) end = it + 1;",
        "end = it + 1;",
        "Effects of programs of JAX's pass a function that does not wait for them.",
        (f"{PLAIN}::test_awaited_plain_record_passes_functions",),
    ),
    Slip(
        "release.waits_for_run",
        ORDER,
        "if (restricted_to_ == epoch.info.thread && stream.ended_in_run == 0) stream.ended_in_run = epoch.dispatch;",
        "",
        "A plain effect leaves while what a program before it has recorded is still being replayed.",
        (f"{PLAIN}::test_run_with_which_an_epoch_ends_is_waited_for",),
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
        "return header.reply == 0; // a device's copy; an answer that it waits for has been given already",
        "return true;",
        "A device that asks again for what has been answered waits for ever.",
        (f"{TEST}::test_accept_of_what_has_left",),
    ),
)
