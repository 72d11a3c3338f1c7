// Calls of Python's functions, and attributes of its objects.
#pragma once

#include <nanobind/nanobind.h>

namespace effects {

namespace nb = nanobind;

// f(token, *args, **kwargs), or without a token or names if there are none.
nb::object Call(nb::handle f, nb::handle token, nb::handle args, nb::handle kwargs);

// The attribute of this name, which is a Python string that was interned: a C string would be made one at every call.
inline nb::object Get(nb::handle object, nb::handle name) {
  PyObject *const value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

} // namespace effects
