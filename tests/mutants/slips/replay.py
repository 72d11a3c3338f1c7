"""Replay: what becomes of a record on the host."""

from tests.mutants.slip import Slip

BUILDER = "dispatch/native/drain/batch.cc"
REPLIES = "dispatch/native/drain/replies.cc"
REPLAY = "dispatch/runtime/replay.py"
EXITS = "tests/effects/callback/test_exits.py"
CAPTURE = "tests/effects/log/test_capture.py"

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
        "replay.direct_record",
        "effects/_model/callback.py",
        "if not site.is_plain or self.pass_record:",
        "if not site.is_plain:",
        "A function that asks for its record does not get it.",
        ("tests/effects/callback/test_callback.py::test_pass_record_with_results",),
    ),
    Slip(
        "replay.direct_types",
        "effects/_model/callback.py",
        " or site.shards or site.shown_otherwise:\n            return None",
        " or site.shards:\n            return None",
        "Arguments come in the types in which they travel.",
        ("tests/effects/callback/test_callback.py::test_every_dtype_goes_in_and_comes_out",),
    ),
    Slip(
        "replay.lanes_exit",
        REPLAY,
        "            except BaseException as error:\n                if call.results is not None:",
        "            except BaseException as error:\n                if call.results is None:",
        "What one lane raises is kept from the program that waits for the lanes' results.",
        (f"{EXITS}::test_exit_of_a_callback_with_results_is_raised_by_the_call",),
    ),
    Slip(
        "replay.all_lanes",
        REPLAY,
        "if call.is_vectorized and site.active(payload) is None:",
        "if call.is_vectorized:",
        "A function for all lanes together is called with lanes that are not there.",
        ("tests/transformations/test_transformations.py::test_callbacks_are_called_for_lanes_that_are_there",),
    ),
    Slip(
        "replay.lane_results",
        REPLAY,
        "all_lanes[lane] = of_one",
        "all_lanes[lane[::-1]] = of_one",
        "Results of nested lanes come to each other's place.",
        ("tests/effects/callback/test_results.py::test_results_of_nested_lanes",),
    ),
    Slip(
        "replay.own_context",
        REPLAY,
        "self._call[2].copy().run(self._run, site, token, device, payload, time)",
        "self._call[2].run(self._run, site, token, device, payload, time)",
        "What a function sets in its context is seen by the next one.",
        ("tests/effects/callback/test_callback.py::test_context_is_each_functions_own",),
    ),
    Slip(
        "replay.nested_effects",
        REPLAY,
        "                self._wait_for_nested(self._key)\n            return []",
        "                pass\n            return []",
        "Effects of programs that a function calls come at some time, and not in its place.",
        ("tests/effects/callback/test_nested.py::test_effects_of_a_callback_come_in_its_place",),
    ),
    Slip(
        "replay.suppressed",
        REPLAY,
        "suppressed = bool(observed) and any(capture.suppress for capture in self._captures())",
        "suppressed = bool(observed) and all(capture.suppress for capture in self._captures())",
        "A suppressing block inside one that is not shows its prints.",
        (f"{CAPTURE}::test_suppressing_block_inside_one_that_does_not",),
    ),
    Slip(
        "replay.awaited_is_last",
        BUILDER,
        "if (item.reply != 0 || (unordered && callback)) close_run();",
        "if (unordered && callback) close_run();",
        "A program is given its answer only after what else is in the batch, for which it may be needed.",
        ("tests/native/run_test.cc::test_awaited_callback_is_the_last_of_its_batch",),
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
    Slip(
        "replay.resumes_before_it_ends",
        "dispatch/runtime/drain.py",
        "        suspended = self.runs.pop(id(items), None) is not None\n",
        "        suspended = self.runs.pop(id(items), None) is not None\n        native.resume(run)\n",
        "A program may end before the one ahead of it, whose callback has run.",
        ("tests/dispatch/test_runtime.py::test_epochs_end_in_their_order_while_a_drain_thread_is_late",),
    ),
)
