// The driver's functions for kernels. What a module is loaded from is its text, which is what the simulated assembler
// makes.
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"
#include "ptx.h"

namespace simulated {

struct Function {
  const Kernel *kernel;
  std::string name;
};

Work KernelOf(Function *function, Dim grid, Dim block, unsigned shared, void **given) {
  if (function->kernel == nullptr) return [] {};
  std::vector<std::vector<std::byte>> parameters;
  for (const size_t size : ParametersOf(*function->kernel)) {
    const auto *const bytes = static_cast<const std::byte *>(given[parameters.size()]);
    parameters.emplace_back(bytes, bytes + size);
  }
  return [=, parameters = std::move(parameters)] {
    try {
      Run(*function->kernel, grid, block, parameters, shared);
    } catch (const std::exception &error) {
      Fail(function->name + ": " + error.what());
    }
  };
}

} // namespace simulated

using namespace simulated;

namespace {

struct Loaded {
  std::unique_ptr<Module> module;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void *stream;
};

} // namespace

extern "C" {

// For other libraries of the simulated machine: a kernel that does nothing.
void *simulated_idle_kernel() {
  static Function idle{nullptr, "a kernel that does nothing"};
  return &idle;
}

Result cuModuleLoadData(Loaded **made, const void *image) {
  CALLED_IN_CONTEXT("cuModuleLoadData")
  OUTSIDE_CAPTURE()
  if (std::memcmp(image,
                  "\x7f"
                  "ELF",
                  4) == 0)
    Fail(
        "A kernel was assembled. NVIDIA's assembler was found ahead of the simulated one: install JAX's plugin without "
        "what it depends on.");
  try {
    auto loaded = std::make_unique<Loaded>();
    loaded->module = std::make_unique<Module>(static_cast<const char *>(image), device());
    *made = loaded.release(); // kernels may run when it is unloaded
    return kSuccess;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "The simulated GPU: %s\n", error.what());
    return kInvalidImage;
  }
}
Result cuModuleLoadDataEx(Loaded **made, const void *image, unsigned, int *, void **) {
  return cuModuleLoadData(made, image);
}
Result cuModuleLoadFatBinary(Loaded **made, const void *image) { return cuModuleLoadData(made, image); }
Result cuModuleUnload(Loaded *) { return kSuccess; }
Result cuModuleGetFunction(Function **function, Loaded *loaded, const char *name) {
  CALLED_IN_CONTEXT("cuModuleGetFunction")
  const Kernel *const kernel = loaded->module->find(name);
  if (kernel == nullptr) return kNotFound;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto &known = loaded->functions[name];
  if (known == nullptr) known = std::make_unique<Function>(Function{kernel, name});
  *function = known.get();
  return kSuccess;
}
Result cuModuleGetGlobal_v2(Address *address, size_t *size, Loaded *loaded, const char *name) {
  CALLED_IN_CONTEXT("cuModuleGetGlobal")
  const auto *const variable = loaded->module->variable(name);
  if (variable == nullptr) return kNotFound;
  if (address != nullptr) *address = variable->address;
  if (size != nullptr) *size = variable->size;
  return kSuccess;
}
Result cuFuncGetAttribute(int *value, int attribute, Function *) {
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; // threads of a block, and registers of a thread
  return kSuccess;
}
Result cuFuncSetAttribute(Function *, int, int) { return kSuccess; }
Result cuFuncSetCacheConfig(Function *, int) { return kSuccess; }
Result cuFuncGetName(const char **name, Function *function) {
  *name = function->name.c_str();
  return kSuccess;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *, int, size_t) {
  *blocks = 1;
  return kSuccess;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Function *, int, size_t, unsigned) {
  *blocks = 1;
  return kSuccess;
}
Result cuLaunchKernel(Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **given, void **) {
  CALLED_IN_CONTEXT("cuLaunchKernel")
  return Put(stream, NodeType::kKernel,
             KernelOf(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, given));
}
Result cuLaunchKernelEx(const LaunchConfig *config, Function *function, void **parameters, void **more) {
  const auto &grid = config->grid, &block = config->block;
  return cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared,
                        config->stream, parameters, more);
}

} // extern "C"
