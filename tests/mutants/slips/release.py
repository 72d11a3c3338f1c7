"""The release order: what leaves when, and when an epoch ends."""

from tests.mutants.slip import Slip

ORDER = "dispatch/native/order/release_order.cc"
EPOCH = "dispatch/native/order/epoch.cc"
UNTRACKED = "dispatch/native/order/untracked.cc"
TEST = "tests/native/order_test.cc"

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
        "release.untracked_is_earlier",
        UNTRACKED,
        "if (scan_ <= epoch.opened_scan + 1) return true;",
        "",
        "A program's record leaves ahead of an untracked one from before its dispatch that the scan has not seen.",
        ("tests/native/untracked_test.cc::test_program_follows_earlier_untracked_records",),
    ),
    Slip(
        "release.untracked_waits",
        UNTRACKED,
        "static_cast<int32_t>(header.token.epoch - static_cast<uint32_t>(oldest)) >= 0)",
        "static_cast<int32_t>(header.token.epoch - static_cast<uint32_t>(oldest)) > 0)",
        "An untracked record leaves before the program that was dispatched last ahead of it has ended.",
        ("tests/native/order_untracked_test.cc::test_untracked_record_waits_for_the_newest_dispatch",),
    ),
    Slip(
        "release.asked_passes_all",
        UNTRACKED,
        "(asked && (stream.runs == 0 || stream.waits))",
        "asked",
        "A program of JAX's that waits for its callback passes functions that do not wait for it.",
        ("tests/native/order_untracked_test.cc::test_awaited_untracked_record_passes_suspended_streams",),
    ),
    Slip(
        "release.untracked_waits_for_run",
        ORDER,
        "if (restricted_to_ == epoch.info.thread && stream.ended_in_run == 0) stream.ended_in_run = epoch.dispatch;",
        "",
        "An untracked record leaves while what a program before it has recorded is still being replayed.",
        ("tests/native/order_untracked_test.cc::test_untracked_records_wait_for_a_run_with_which_an_epoch_ends",),
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
