// The lines of consecutive records.
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
  std::vector<uint64_t> ends; // the end of each line
};

// The line of each record whose site has a plan, in order. `records`: consecutive headers and payloads.
Rows FormatRows(std::string_view records, const std::unordered_map<uint64_t, const Plan *> &plans,
                const PrintOptions &in_force);

// The sites of these records, each once, in order of appearance.
std::vector<uint64_t> SitesOf(std::string_view records);

struct Selected {
  std::string records;
  uint64_t count = 0;
};

// The records of these sites.
Selected SelectRecords(std::string_view records, const std::vector<uint64_t> &sites);

} // namespace effects
