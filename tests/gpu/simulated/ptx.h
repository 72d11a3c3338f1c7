// Kernels as their compilers write them for NVIDIA's driver (PTX), and an interpreter of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "machine.h"

namespace simulated {

struct Kernel;

class Module {
public:
  // Its variables are in the memory of the device. Throws std::runtime_error where a kernel has what the interpreter
  // cannot read; an instruction that it does not know ends a kernel when it comes there.
  Module(const std::string &text, int device);
  ~Module();

  const Kernel *find(const std::string &name) const;

  struct Variable {
    size_t size;
    Address address;
  };
  // Null: there is none of the name.
  const Variable *variable(const std::string &name) const;

private:
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
  std::map<std::string, Variable> variables_;
};

// How many bytes each parameter has.
const std::vector<size_t> &ParametersOf(const Kernel &kernel);

// Runs all blocks, one after the other. `shared`: how much shared memory each has besides its own.
void Run(const Kernel &kernel, Dim grid, Dim block, const std::vector<std::vector<std::byte>> &parameters,
         size_t shared);

} // namespace simulated
