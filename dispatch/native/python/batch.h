// A batch for Python: plain tuples, since named tuples would cost time at every batch.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>

#include "../drain/batch.h"

namespace effects {

// The fields of the tuples, in their order. `Batch`, `Item`, `CallbackRecord` and `RecordsBetween` in
// effects/_model/wire.py.
inline constexpr std::initializer_list<const char *> kBatchFields = {"items", "finished", "complete",   "forgotten",
                                                                     "run",   "domain",   "run_number", "stopped"};
inline constexpr std::initializer_list<const char *> kItemFields = {"kind",  "thread",        "epoch",  "count", "data",
                                                                    "block", "has_callbacks", "failed", "reply"};
inline constexpr std::initializer_list<const char *> kCallbackRecordFields = {"site",    "token",   "device", "reply",
                                                                              "several", "payload", "time"};
inline constexpr std::initializer_list<const char *> kRecordsBetweenFields = {"data", "count"};

nanobind::tuple ToTuple(const Token &token);

// True if several devices make the record's call.
bool IsOfSeveral(const RecordHeader &header);

// Converts the batch to a `Batch`. Under Python's lock.
nanobind::tuple ToPython(Batch &batch);

} // namespace effects
