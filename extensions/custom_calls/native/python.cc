// Custom calls of the user's, for Python: a handler is an address.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "custom_call.h"
#include "dispatch/native/python/extension.h"
#include "targets.h"

namespace effects {

namespace nb = nanobind;

static const Extension custom_calls([](nb::module_ &m) {
  m.def("custom_call_handlers", [](bool in_plugin) { return ToList(CustomCallHandlers(in_plugin)); });
  m.def("loaded_call_type", [](bool in_plugin) {
    return nb::make_tuple(nb::capsule(LoadedCallTypeId(in_plugin)), nb::capsule(LoadedCallTypeInfo(in_plugin)));
  });
  m.def("set_target", [](const std::string &name, const std::string &platform, uintptr_t handler) {
    targets().set(name, platform, reinterpret_cast<UserHandler>(handler));
  });
  m.def("take_custom_call_failure", [](uint64_t number) -> nb::object {
    const auto failure = custom_call_failures().take(number);
    if (!failure) return nb::none();
    return nb::make_tuple(failure->target, failure->where, failure->code,
                          nb::bytes(failure->message.data(), failure->message.size()));
  });
});

} // namespace effects
