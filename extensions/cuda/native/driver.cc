#include "driver.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace effects::cuda {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

// The driver that was found.
struct Found {
  Driver driver;
  DriverStatus status;
};

std::mutex mutex; // held while looking
// All found drivers. Never destroyed: streams' host functions may outlive the static objects of this library.
auto &all = *new std::vector<std::unique_ptr<const Found>>;
std::atomic<const Found *> found{nullptr};

std::string Shown(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

template <typename Find>
std::unique_ptr<const Found> Load(const std::string &library, Find &&find) {
  auto loaded = std::make_unique<Found>();
  Driver &driver = loaded->driver;
  DriverStatus &status = loaded->status;
  status.library = library;
  const auto bind = [&](auto &function) {
    void *const address = find(function.name);
    if (address == nullptr && status.why_none.empty())
      status.why_none = "It has no function `" + std::string(function.name) + "`.";
    function.function = reinterpret_cast<decltype(function.function)>(address);
  };
  bind(driver.get_version);
  if (driver.get_version.function != nullptr && driver.get_version.function(&status.version) == kSuccess &&
      status.version < kOldestVersion) {
    status.why_none = "It is of CUDA " + Shown(status.version) + ", and " + Shown(kOldestVersion) +
                      " is the oldest that can be used.";
    return loaded;
  }
  bind(driver.get_error_name);
  bind(driver.get_error_string);
  bind(driver.get_context);
  bind(driver.push_context);
  bind(driver.pop_context);
  bind(driver.allocate_pinned);
  bind(driver.copy_to_host);
  bind(driver.copy_to_device);
  bind(driver.launch_host_function);
  bind(driver.query);
  bind(driver.load_module);
  bind(driver.find_kernel);
  bind(driver.launch_kernel);
  return loaded;
}

std::unique_ptr<const Found> Open() {
  if (void *const handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL))
    return Load(kLibrary, [handle](const char *name) { return dlsym(handle, name); });
  const char *const why = dlerror();
  auto none = std::make_unique<Found>();
  none->status = {kLibrary, 0,
                  std::string("It cannot be opened: ") + (why == nullptr ? "no reason is given" : why) + "."};
  return none;
}

// With the lock held: from now on this is the driver.
void Use(std::unique_ptr<const Found> one) {
  all.push_back(std::move(one));
  found.store(all.back().get(), std::memory_order_release);
}

const Found &Look() {
  if (const Found *const known = found.load(std::memory_order_acquire)) return *known;
  std::lock_guard lock(mutex);
  if (found.load(std::memory_order_relaxed) == nullptr) Use(Open());
  return *found.load(std::memory_order_relaxed);
}

} // namespace

std::string Describe(const char *function, Result result) {
  const Driver &driver = Look().driver;
  const char *name = nullptr, *text = nullptr;
  if (driver.get_error_name.function != nullptr) driver.get_error_name.function(result, &name);
  if (driver.get_error_string.function != nullptr) driver.get_error_string.function(result, &text);
  std::string shown = "The driver's function `" + std::string(function) + "` failed with ";
  shown += name == nullptr ? "error " + std::to_string(result) : name;
  if (text != nullptr) shown += std::string(" (") + text + ")";
  return shown + ".";
}

const Driver *find_driver() {
  const Found &known = Look();
  return known.status.why_none.empty() ? &known.driver : nullptr;
}

const Driver &driver() {
  const Found &known = Look();
  if (!known.status.why_none.empty())
    throw DriverError("The driver `" + known.status.library + "` cannot be used. " + known.status.why_none);
  return known.driver;
}

DriverStatus driver_status() { return Look().status; }

void use_driver(const std::string &called, void *(*find)(const char *)) {
  std::lock_guard lock(mutex);
  Use(Load(called, find));
}

void CheckStream(const Driver &driver, Stream stream) {
  const Result result = driver.query.function(stream);
  if (result != kSuccess && result != kNotReady) throw DriverError(Describe(driver.query.name, result));
}

InContextOf::InContextOf(const Driver &driver, Stream stream) : driver_(driver) {
  Context context = nullptr;
  driver.get_context(stream, &context);
  driver.push_context(context);
}

InContextOf::~InContextOf() {
  Context context = nullptr;
  driver_.pop_context.function(&context); // it fails only if the context has been popped by others
}

} // namespace effects::cuda
