// What a folder of extensions adds to the module: its `native/python.cc` has one of these.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "../xla/runtime.h"

namespace effects {

class Extension {
public:
  using Define = void (*)(nanobind::module_ &);

  // A static object: `define` runs when Python loads the module, behind the core's own.
  explicit Extension(Define define) { all().push_back(define); }
  static std::vector<Define> &all() {
    static auto *const defined = new std::vector<Define>();
    return *defined;
  }
};

// As Python registers them: (target, stage, capsule) of each.
nanobind::list ToList(const std::vector<Handler> &handlers);

} // namespace effects
