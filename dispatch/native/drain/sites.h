// The known sites: their descriptions, the plans of their records, and the programs that hold them.
//
// Any thread may call everything here.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../producer/filter.h"
#include "../text/format.h"

namespace effects {

class Sites {
public:
  // Adds a holder, which may publish records of this site: a program that is, or may be, loaded.
  void retain(uint64_t site, std::string_view description = {});

  // Removes a holder. `dispatch`: the number of dispatches so far. Records of the site may come until these have ended.
  void release(uint64_t site, uint64_t dispatch);

  uint64_t holders(uint64_t site);
  std::string description(uint64_t site);

  void set_plan(uint64_t site, Plan plan);
  // Null: Python formats the site's records.
  std::shared_ptr<const Plan> plan(uint64_t site);

  // The filter of the site's line. The first filter that is created or given stays the site's.
  std::shared_ptr<Filter> filter(uint64_t site, std::shared_ptr<Filter> given = nullptr);

  // Forgets the sites without a holder of which no record can come, since all dispatches before `oldest_open` have
  // ended. Returns them.
  std::vector<uint64_t> forget(uint64_t oldest_open);
  bool any_dying();

private:
  struct Known {
    uint64_t holders = 0;
    bool dying = false;         // among `dying_`
    uint64_t last_dispatch = 0; // the number of dispatches when the last holder went
    std::string description;
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<Filter> filter;
  };

  std::mutex mutex_;                          // guards all below
  std::unordered_map<uint64_t, Known> sites_; // by content hash
  std::vector<uint64_t> dying_;               // without a holder
};

} // namespace effects
