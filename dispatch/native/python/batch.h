// A batch of the drain's, as Python sees it: plain tuples, since naming their fields would take time at every batch.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>

#include "../drain/batch.h"

namespace effects {

// The fields of the tuples, in their order. `Batch`, `Asked`, `Item`, `CallbackRecord` and `RecordsBetween` in
// effects/_wire.py.
inline constexpr std::initializer_list<const char *> kBatchFields = {
    "items", "finished", "forgotten", "untracked_released", "run", "untracked_in_run", "stopped"};
inline constexpr std::initializer_list<const char *> kAskedFields = {
    "run", "untracked_in_run", "thread", "epoch", "site", "token", "device", "reply", "payload"};
inline constexpr std::initializer_list<const char *> kItemFields = {"kind",  "thread",        "epoch",  "count", "data",
                                                                    "block", "has_callbacks", "failed", "reply"};
inline constexpr std::initializer_list<const char *> kCallbackRecordFields = {"site",  "token",   "device",
                                                                              "reply", "several", "payload"};
inline constexpr std::initializer_list<const char *> kRecordsBetweenFields = {"data", "count"};

// The leader's next batch. Without Python's lock. `patience_s`, `before_untracked`: see Drain::next_batch().
Batch TakeBatch(double patience_s, const nanobind::callable &before_untracked);

// Takes the batch apart: a `Batch` or, if all that there is in it is one call that a program waits for, an `Asked`.
// Under Python's lock.
nanobind::tuple ToPython(Batch &batch);

} // namespace effects
