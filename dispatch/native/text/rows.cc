#include "rows.h"

#include <algorithm>
#include <cstddef>

#include "../wire.h"
#include "digits.h"

namespace effects {
namespace {

template <typename F>
void ForEach(std::string_view records, F &&f) {
  for (size_t at = 0; at < records.size();) {
    const auto *record = reinterpret_cast<const std::byte *>(records.data() + at);
    const auto header = Load<RecordHeader>(record);
    f(header, record + sizeof(RecordHeader));
    at += sizeof(RecordHeader) + header.payload_size;
  }
}

} // namespace

Rows FormatRows(std::string_view records, const std::unordered_map<uint64_t, const Plan *> &plans,
                const PrintOptions &in_force) {
  Rows rows;
  uint64_t last_site = 0;
  const Plan *plan = nullptr; // the last site's
  bool is_first = true;
  ForEach(records, [&](const RecordHeader &header, const std::byte *payload) {
    if (is_first || header.site != last_site) {
      const auto found = plans.find(header.site);
      plan = found == plans.end() ? nullptr : found->second;
      last_site = header.site;
      is_first = false;
    }
    if (plan == nullptr) return;
    const bool is_first_line = rows.ends.empty();
    FormatLanes(rows.text, *plan, payload, in_force, [&] { rows.ends.push_back(rows.text.size()); });
    if (is_first_line) // like most records
      rows.text.reserve(records.size() / (sizeof(RecordHeader) + header.payload_size) * rows.text.size());
  });
  return rows;
}

std::vector<uint64_t> SitesOf(std::string_view records) {
  std::vector<uint64_t> sites;
  uint64_t last = 0;
  ForEach(records, [&](const RecordHeader &header, const std::byte *) {
    if (!sites.empty() && header.site == last) return;
    last = header.site;
    if (std::find(sites.begin(), sites.end(), last) == sites.end()) sites.push_back(last);
  });
  return sites;
}

Selected SelectRecords(std::string_view records, const std::vector<uint64_t> &sites) {
  Selected selected;
  ForEach(records, [&](const RecordHeader &header, const std::byte *payload) {
    if (std::find(sites.begin(), sites.end(), header.site) == sites.end()) return;
    selected.records.append(reinterpret_cast<const char *>(payload - sizeof(RecordHeader)),
                            sizeof(RecordHeader) + header.payload_size);
    ++selected.count;
  });
  return selected;
}

} // namespace effects
