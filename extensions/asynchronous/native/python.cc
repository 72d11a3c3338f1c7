// Asynchronous operations, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bodies.h"
#include "dispatch/native/python/extension.h"
#include "operations.h"

namespace effects {

namespace nb = nanobind;

static const Extension asynchronous([](nb::module_ &m) {
  listeners().when_program_fails.push_back(
      [](const Program &program, const std::string &why) { operations().fail(program, why); });
  m.def("operation_handlers", [] { return ToList(OperationHandlers()); });
  m.def("any_operations", [] { return operations().any(); });
  m.def("fail_operations", [](uint32_t thread, uint32_t epoch, const std::string &why) {
    nb::gil_scoped_release release;
    operations().fail({thread, epoch}, why);
  });
  m.def("started_operations", [](uint32_t thread, uint32_t epoch, int32_t device) -> nb::object {
    const std::optional<uint32_t> started = operations().started({thread, epoch}, device);
    return started ? nb::cast(*started) : nb::none();
  });
  // Forgets an ended program. Returns the number of operations that were not done; None if it has failed.
  m.def("end_operations", [](uint32_t thread, uint32_t epoch) -> nb::object {
    std::optional<size_t> not_done;
    {
      nb::gil_scoped_release release;
      not_done = operations().end({thread, epoch});
    }
    return not_done ? nb::cast(*not_done) : nb::none();
  });
});

} // namespace effects
