// The process's one publisher, drain and table of sites, and the XLA FFI handlers that feed them.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "drain.h"
#include "publisher.h"

namespace effects {

// What loaded programs say of their sites: content hash -> description.
class Sites {
public:
  void introduce(uint64_t site, std::string_view description) {
    std::lock_guard lock(mutex_);
    descriptions_.emplace(site, description);
  }
  std::string description(uint64_t site) {
    std::lock_guard lock(mutex_);
    auto it = descriptions_.find(site);
    return it == descriptions_.end() ? std::string() : it->second;
  }

private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::string> descriptions_; // guarded by mutex_
};

Publisher &publisher();
Drain &drain();
Sites &sites();

// Publishes a record that belongs to no epoch.
void PublishPlain(uint64_t site, bool ordered, int32_t device, const Span *spans, size_t count);

struct Handler {
  const char *target;
  const char *stage;
  void *function;
};
const std::vector<Handler> &handlers();

} // namespace effects
