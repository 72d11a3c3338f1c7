// Calls of Python functions, and attributes of Python objects.
#pragma once

#include <nanobind/nanobind.h>

namespace effects {

namespace nb = nanobind;

// f(token, *args, **kwargs); token and kwargs are optional.
nb::object Call(nb::handle f, nb::handle token, nb::handle args, nb::handle kwargs);

// Named arguments may be null if there are none.
inline bool HasNames(nb::handle kwargs) { return kwargs.is_valid() && NB_DICT_GET_SIZE(kwargs.ptr()) != 0; }
inline nb::object NamesOf(nb::handle kwargs) { return kwargs.is_valid() ? nb::borrow(kwargs) : nb::object(nb::dict()); }

// The attribute of this name, an interned Python string: a C string would be converted at every call.
inline nb::object Get(nb::handle object, nb::handle name) {
  PyObject *const value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

// object.name(), with a name as above; null if it raises.
inline nb::object CallMethod(nb::handle object, nb::handle name) {
  PyObject *const self = object.ptr();
  return nb::steal(PyObject_VectorcallMethod(name.ptr(), &self, 1, nullptr));
}

} // namespace effects
