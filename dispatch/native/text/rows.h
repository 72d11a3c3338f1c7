// Records that came together, as lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format.h"

namespace effects {

struct Rows {
  std::string text;
  std::vector<uint64_t> ends; // where each line ends
};

// The line of each record whose site has a plan here, in order. `records`: headers and payloads, one behind the other.
Rows FormatRows(std::string_view records, const std::unordered_map<uint64_t, const Plan *> &plans,
                const PrintOptions &in_force);

// The sites of these records, each once, as they come.
std::vector<uint64_t> SitesOf(std::string_view records);

struct Selected {
  std::string records;
  uint64_t count = 0;
};

// Those of the records that are of these sites.
Selected SelectRecords(std::string_view records, const std::vector<uint64_t> &sites);

} // namespace effects
