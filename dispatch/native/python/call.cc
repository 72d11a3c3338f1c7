#include "call.h"

#include <vector>

namespace effects {

nb::object Call(nb::handle f, nb::handle token, nb::handle args, nb::handle kwargs) {
  const size_t count = static_cast<size_t>(NB_TUPLE_GET_SIZE(args.ptr()));
  const size_t named = kwargs.is_valid() ? static_cast<size_t>(NB_DICT_GET_SIZE(kwargs.ptr())) : 0;
  constexpr size_t kFew = 16; // most calls need no memory for this
  PyObject *few[kFew];
  std::vector<PyObject *> many(2 + count + named > kFew ? 2 + count + named : 0);
  PyObject **const all = many.empty() ? few : many.data();
  size_t at = 1; // the first place is reserved for the callee, as vectorcall requires
  if (token.is_valid()) all[at++] = token.ptr();
  for (size_t i = 0; i < count; ++i) all[at++] = NB_TUPLE_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(i));
  const size_t positional = at - 1;
  nb::object names;
  if (named != 0) {
    names = nb::steal(PySequence_Tuple(kwargs.ptr()));
    PyObject *name, *value;
    for (Py_ssize_t next = 0; PyDict_Next(kwargs.ptr(), &next, &name, &value);) all[at++] = value;
  }
  PyObject *const returned =
      PyObject_Vectorcall(f.ptr(), all + 1, positional | PY_VECTORCALL_ARGUMENTS_OFFSET, names.ptr());
  if (returned == nullptr) throw nb::python_error();
  return nb::steal(returned);
}

} // namespace effects
