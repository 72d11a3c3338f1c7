// What the drain hands out, read.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "dispatch/native/drain/batch.h"

namespace effects {

constexpr size_t kSmallest = 4096; // the bytes of the smallest ring
constexpr std::chrono::milliseconds kPatience{50};

// Calls `visit(header, payload)` for every record that an item stands for. The item is not text.
void ForEachRecord(const Item &item, const std::function<void(const RecordHeader &, const std::string &)> &visit);

} // namespace effects
