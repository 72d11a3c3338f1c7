#include "sites.h"

#include <utility>

namespace effects {

void Sites::retain(uint64_t site, std::string_view description) {
  std::lock_guard lock(mutex_);
  Known &known = sites_[site];
  ++known.holders;
  if (known.description.empty()) known.description = description;
}

void Sites::release(uint64_t site, uint64_t dispatch) {
  std::lock_guard lock(mutex_);
  auto it = sites_.find(site);
  if (it == sites_.end() || it->second.holders == 0 || --it->second.holders != 0) return;
  it->second.last_dispatch = dispatch;
  if (!std::exchange(it->second.dying, true)) dying_.push_back(site);
}

uint64_t Sites::holders(uint64_t site) {
  std::lock_guard lock(mutex_);
  auto it = sites_.find(site);
  return it == sites_.end() ? 0 : it->second.holders;
}

std::string Sites::description(uint64_t site) {
  std::lock_guard lock(mutex_);
  auto it = sites_.find(site);
  return it == sites_.end() ? std::string() : it->second.description;
}

void Sites::set_plan(uint64_t site, Plan plan) {
  std::lock_guard lock(mutex_);
  sites_[site].plan = std::make_shared<const Plan>(std::move(plan));
}

std::shared_ptr<const Plan> Sites::plan(uint64_t site) {
  std::lock_guard lock(mutex_);
  auto it = sites_.find(site);
  return it == sites_.end() ? nullptr : it->second.plan;
}

std::shared_ptr<Filter> Sites::filter(uint64_t site, std::shared_ptr<Filter> given) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Filter> &filter = sites_[site].filter;
  if (filter == nullptr) filter = given != nullptr ? std::move(given) : std::make_shared<Filter>();
  return filter;
}

// A site may lose its last holder while records of it are under way. If it were forgotten at once:
//   1. A program is dispatched, and its call returns.
//   2. The program is freed, and with it the last holder of its site.
//   3. The drain forgets the site.
//   4. A record of the site is released, and its layout is unknown.
// So step 2 notes the number of dispatched programs, and the site stays until these have ended. The drain may not have
// read of the dispatch of step 1 yet: `oldest_open` is then at most that dispatch.
std::vector<uint64_t> Sites::forget(uint64_t oldest_open) {
  std::vector<uint64_t> forgotten;
  std::lock_guard lock(mutex_);
  size_t kept = 0;
  for (const uint64_t site : dying_) {
    auto it = sites_.find(site);
    if (it == sites_.end()) continue;
    if (it->second.holders != 0) { // it has a holder again
      it->second.dying = false;
      continue;
    }
    if (it->second.last_dispatch >= oldest_open) {
      dying_[kept++] = site;
      continue;
    }
    sites_.erase(it);
    forgotten.push_back(site);
  }
  dying_.resize(kept);
  return forgotten;
}

bool Sites::any_dying() {
  std::lock_guard lock(mutex_);
  return !dying_.empty();
}

} // namespace effects
