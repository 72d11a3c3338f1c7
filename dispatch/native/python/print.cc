#include "print.h"

#include <array>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace effects {
namespace {

PyObject *original_print = nullptr; // never freed: `print` may be called until the very end

// What was given by name: borrowed, null if it was not given.
struct Options {
  PyObject *sep = nullptr, *end = nullptr, *file = nullptr, *flush = nullptr;
};

// Nothing if `print` does not have these options or not these values, so that it is Python's to say what is wrong.
std::optional<Options> ReadOptions(PyObject *named) {
  Options options;
  if (named == nullptr) return options;
  static constexpr std::array<std::pair<const char *, PyObject * Options::*>, 4> kKnown{
      {{"sep", &Options::sep}, {"end", &Options::end}, {"file", &Options::file}, {"flush", &Options::flush}}};
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(named, &at, &key, &value);) {
    bool is_known = false;
    for (const auto &[name, place] : kKnown)
      if (PyUnicode_CompareWithASCIIString(key, name) == 0) {
        options.*place = value;
        is_known = true;
      }
    if (!is_known) return std::nullopt;
  }
  for (PyObject **const text : {&options.sep, &options.end}) {
    if (*text == Py_None) *text = nullptr;
    if (*text != nullptr && !PyUnicode_Check(*text)) return std::nullopt;
  }
  return options;
}

nb::object CheckNoError(PyObject *made) {
  if (made == nullptr) nb::raise_python_error();
  return nb::steal(made);
}

// The text of a call.
nb::object TextOf(PyObject *args, const Options &options) {
  const Py_ssize_t count = PyTuple_Size(args);
  nb::list parts;
  for (Py_ssize_t i = 0; i < count; ++i) parts.append(CheckNoError(PyObject_Str(PyTuple_GetItem(args, i))));
  const nb::object sep = options.sep == nullptr ? nb::object(nb::str(" ")) : nb::borrow(options.sep);
  const nb::object end = options.end == nullptr ? nb::object(nb::str("\n")) : nb::borrow(options.end);
  const nb::object text = CheckNoError(PyUnicode_Join(sep.ptr(), parts.ptr()));
  return CheckNoError(PyUnicode_Concat(text.ptr(), end.ptr()));
}

PyObject *Print(PyObject *, PyObject *args, PyObject *named) {
  try {
    const std::optional<Options> options = ReadOptions(named);
    const bool given = options && options->file != nullptr && options->file != Py_None;
    PyObject *const file = !options ? nullptr : given ? options->file : PySys_GetObject("stdout");
    if (file == nullptr || file == Py_None) return PyObject_Call(original_print, args, named);
    const nb::object kept = nb::borrow(file); // an argument's `__str__` may put another in its place
    kept.attr("write")(TextOf(args, *options));
    if (options->flush != nullptr) {
      const int flushes = PyObject_IsTrue(options->flush);
      if (flushes < 0) return nullptr;
      if (flushes != 0) kept.attr("flush")();
    }
    Py_RETURN_NONE;
  } catch (nb::python_error &error) {
    error.restore();
    return nullptr;
  } catch (const std::exception &error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

} // namespace

nb::object PrintAtOnce(nb::object original) {
  original_print = original.release().ptr();
  // With the signature, as the text of builtin functions has it.
  static const std::string doc = "print(*args, sep=' ', end='\\n', file=None, flush=False)\n--\n\n" +
                                 nb::cast<std::string>(nb::handle(original_print).attr("__doc__"));
  static PyMethodDef definition{"print", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Print)),
                                METH_VARARGS | METH_KEYWORDS, doc.c_str()};
  return CheckNoError(PyCFunction_NewEx(&definition, nullptr, nb::str("builtins").ptr()));
}

} // namespace effects
