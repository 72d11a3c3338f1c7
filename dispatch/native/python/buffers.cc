#include "buffers.h"

namespace nb = nanobind;

namespace effects {

Buffers::Buffers(nb::list objects) {
  buffers_.reserve(nb::len(objects));
  for (nb::handle object : objects) {
    buffers_.emplace_back();
    if (PyObject_GetBuffer(object.ptr(), &buffers_.back(), PyBUF_SIMPLE) != 0) {
      buffers_.pop_back();
      release();
      throw nb::python_error();
    }
    spans_.push_back({buffers_.back().buf, static_cast<size_t>(buffers_.back().len)});
  }
}

void Buffers::release() {
  for (Py_buffer &buffer : buffers_) PyBuffer_Release(&buffer);
  buffers_.clear();
}

} // namespace effects
