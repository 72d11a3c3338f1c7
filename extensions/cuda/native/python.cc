// Programs on NVIDIA's GPUs, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "arrivals.h"
#include "dispatch/native/python/extension.h"
#include "driver.h"
#include "handlers.h"

namespace effects {

namespace nb = nanobind;

static const Extension of_cuda([](nb::module_ &m) {
  listeners().when_stopped.push_back([] { cuda::arrivals().stop(); });
  m.def("cuda_handlers", [] { return ToList(cuda::handlers()); });
  m.def("loaded_cuda_site_type", [] {
    return nb::make_tuple(nb::capsule(cuda::LoadedCudaSiteTypeId()), nb::capsule(cuda::LoadedCudaSiteTypeInfo()));
  });
  // NVIDIA's driver: (library, version, why it cannot be used, or an empty text). The first call opens it.
  m.def("cuda_driver", [] {
    const cuda::DriverStatus status = cuda::driver_status();
    return nb::make_tuple(status.library, status.version, status.why_none);
  });
});

} // namespace effects
