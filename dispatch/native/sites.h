// What is known of sites: how they describe themselves, how their records are formatted, and who still has them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format.h"

namespace effects {

class Sites {
public:
  // Somebody may bring records of this site: a program that is loaded, or may be.
  void retain(uint64_t site, std::string_view description = {}) {
    std::lock_guard lock(mutex_);
    Known &known = sites_[site];
    ++known.holders;
    if (known.description.empty()) known.description = description;
  }

  // The holder is gone. `dispatch` and `plain` say what had been dispatched and published by then: records of the site
  // may come until all of it has left.
  void release(uint64_t site, uint64_t dispatch, uint64_t plain) {
    std::lock_guard lock(mutex_);
    auto it = sites_.find(site);
    if (it == sites_.end() || it->second.holders == 0 || --it->second.holders != 0) return;
    it->second.last_dispatch = dispatch;
    it->second.last_plain = plain;
    if (!std::exchange(it->second.dying, true)) dying_.push_back(site);
  }

  uint64_t holders(uint64_t site) {
    std::lock_guard lock(mutex_);
    auto it = sites_.find(site);
    return it == sites_.end() ? 0 : it->second.holders;
  }

  std::string description(uint64_t site) {
    std::lock_guard lock(mutex_);
    auto it = sites_.find(site);
    return it == sites_.end() ? std::string() : it->second.description;
  }

  void set_plan(uint64_t site, Plan plan) {
    std::lock_guard lock(mutex_);
    sites_[site].plan = std::make_shared<const Plan>(std::move(plan));
  }
  std::shared_ptr<const Plan> plan(uint64_t site) {
    std::lock_guard lock(mutex_);
    auto it = sites_.find(site);
    return it == sites_.end() ? nullptr : it->second.plan;
  }

  // Forgets the sites whose last holder is gone and of which no record can come any more: all dispatches before
  // `oldest_open` have ended, and this many plain records have left. Returns them.
  std::vector<uint64_t> forget(uint64_t oldest_open, uint64_t plain_released) {
    std::vector<uint64_t> forgotten;
    std::lock_guard lock(mutex_);
    size_t kept = 0;
    for (const uint64_t site : dying_) {
      auto it = sites_.find(site);
      if (it == sites_.end()) continue;
      if (it->second.holders != 0) { // somebody has it again
        it->second.dying = false;
        continue;
      }
      if (it->second.last_dispatch >= oldest_open || it->second.last_plain > plain_released) {
        dying_[kept++] = site;
        continue;
      }
      sites_.erase(it);
      forgotten.push_back(site);
    }
    dying_.resize(kept);
    return forgotten;
  }
  bool any_dying() {
    std::lock_guard lock(mutex_);
    return !dying_.empty();
  }

private:
  struct Known {
    uint64_t holders = 0;
    bool dying = false;         // among `dying_`
    uint64_t last_dispatch = 0; // how many there had been when the last holder went
    uint64_t last_plain = 0;
    std::string description;
    std::shared_ptr<const Plan> plan;
  };

  std::mutex mutex_;
  std::unordered_map<uint64_t, Known> sites_; // by content hash
  std::vector<uint64_t> dying_;               // whose last holder is gone
};

} // namespace effects
