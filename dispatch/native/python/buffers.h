// Objects with the buffer protocol, held for as long as their bytes are needed.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

#include "../producer/bytes.h"

namespace effects {

// Made and freed under Python's lock; the spans may be read without it.
class Buffers {
public:
  explicit Buffers(nanobind::list objects);
  Buffers(const Buffers &) = delete;
  ~Buffers() { release(); }
  const std::vector<Span> &spans() const { return spans_; }

private:
  void release();

  std::vector<Py_buffer> buffers_;
  std::vector<Span> spans_;
};

} // namespace effects
