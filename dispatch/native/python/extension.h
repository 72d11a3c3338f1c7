// The additions of a folder of extensions to the module: its `native/python.cc` has one of these.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "../xla/runtime.h"

namespace effects {

class Extension {
public:
  using Define = void (*)(nanobind::module_ &);

  // A static object: `define` runs when Python loads the module, after the core's definitions.
  explicit Extension(Define define) { all().push_back(define); }
  static std::vector<Define> &all() {
    static auto *const defined = new std::vector<Define>();
    return *defined;
  }
};

// The handlers for Python to register, each as (target, stage, capsule).
nanobind::list ToList(const std::vector<Handler> &handlers);

} // namespace effects
