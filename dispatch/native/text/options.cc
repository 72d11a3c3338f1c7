#include "options.h"

#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace effects {
namespace {

auto Key(const PrintOptions &options) {
  return std::make_tuple(options.threshold, options.edgeitems, options.linewidth, options.precision, options.suppress);
}

struct Known {
  std::mutex mutex;
  std::deque<PrintOptions> all; // a deque: its elements do not move
  std::map<decltype(Key({})), uint32_t> numbers;

  uint32_t number_of(const PrintOptions &options) {
    const auto [found, is_new] = numbers.try_emplace(Key(options), static_cast<uint32_t>(all.size()));
    if (is_new) all.push_back(options);
    return found->second;
  }
};

Known &known() {
  static Known &all = *[] {
    Known *const made = new Known; // never destroyed: threads may format until the process ends
    made->number_of({});
    return made;
  }();
  return all;
}

} // namespace

uint32_t NumberOf(const PrintOptions &options) {
  std::lock_guard lock(known().mutex);
  return known().number_of(options);
}

const PrintOptions &PrintOptionsOf(uint32_t number) {
  std::lock_guard lock(known().mutex);
  return known().all[number];
}

} // namespace effects
