"""Replay: what becomes of a record on the host."""

from tests.mutants.slip import Slip

BUILDER = "dispatch/native/drain/batch.cc"
REPLIES = "dispatch/native/drain/replies.cc"
REPLAY = "dispatch/runtime/replay.py"
EXITS = "tests/effects/callback/test_exits.py"

SLIPS = (
    Slip(
        "replay.awaited_exit",
        REPLAY,
        "        except BaseException as error:\n            if awaited:",
        "        except Exception as error:\n            if awaited:",
        "A callback that raises SystemExit or KeyboardInterrupt is no error of its program.",
        (f"{EXITS}::test_exit_of_a_callback_with_results_is_raised_by_the_call",),
    ),
    Slip(
        "replay.one_thread_a_batch",
        BUILDER,
        "(run_closed_ || batch.run != thread || batch.domain != domain);",
        "(run_closed_ || batch.domain != domain);",
        "Functions of one thread's programs delay unordered records of another's.",
        ("tests/native/run_test.cc::test_unordered_records_do_not_wait_behind_callbacks",),
    ),
    Slip(
        "replay.one_domain_a_batch",
        BUILDER,
        "(run_closed_ || batch.run != thread || batch.domain != domain);",
        "(run_closed_ || batch.run != thread);",
        "Functions in an order delay unordered records of their own programs.",
        ("tests/native/run_test.cc::test_records_without_a_plan_begin_a_run",),
    ),
    Slip(
        "replay.failed_records",
        BUILDER,
        "item.reply == 0 && item.info.failed == info.failed;",
        "item.reply == 0;",
        "Records from before a program's failure and from after it are taken for alike.",
        ("tests/native/batch_test.cc::test_records_before_and_after_a_failure_are_apart",),
    ),
    Slip(
        "replay.device_of_the_whole",
        BUILDER,
        "if ((shown.flags & kReplicated) != 0) shown.device = kAllDevices; // whichever device came first\n",
        "",
        "A record of a whole value is said to be of the device that was heard first.",
        ("tests/native/publishing_test.cc::test_replicated_records_are_of_no_device",),
    ),
    Slip(
        "replay.answer_of_a_group",
        REPLIES,
        "return {true, stream, epoch, token.replicas.group, index,",
        "return {true, stream, epoch, 0, index,",
        "Replica groups are given each other's answers.",
        ("tests/native/replicated_replies_test.cc::test_replica_groups_have_answers_of_their_own",),
    ),
)
