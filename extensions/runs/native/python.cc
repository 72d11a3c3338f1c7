// Run files, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "dispatch/native/python/batch.h"
#include "dispatch/native/python/extension.h"
#include "reader.h"
#include "writer.h"

namespace effects {

namespace nb = nanobind;

namespace {
nb::bytes AsBytes(const std::string &bytes) { return nb::bytes(bytes.data(), bytes.size()); }
} // namespace

static const Extension runs_extension([](nb::module_ &m) {
  using runs::Records;
  using runs::RunFile;
  const nb::call_guard<nb::gil_scoped_release> without_lock;
  m.def(
      "start_recording",
      [](const std::string &path, uint64_t capacity, std::optional<uint64_t> inode) {
        return runs::writer().open(path, capacity, inode);
      },
      nb::arg("path"), nb::arg("max_bytes"), nb::arg("inode").none(), without_lock);
  m.def("stop_recording", [] { runs::writer().close(); }, without_lock);
  m.def(
      "describe_site",
      [](uint64_t site, const std::string &text) { return runs::writer().describe(runs::kSite, site, text); },
      without_lock);
  m.def(
      "describe_process", [](const std::string &text) { return runs::writer().describe(runs::kProcess, 0, text); },
      without_lock);

  nb::class_<RunFile>(m, "RunFile")
      .def(nb::init<const std::string &>())
      .def("scan", &RunFile::scan, without_lock)
      .def("look", &RunFile::look, without_lock)
      .def_rw("job", &RunFile::job)
      .def_prop_ro("lost", &RunFile::lost)
      .def_prop_ro("is_written", &RunFile::is_written)
      .def_prop_ro("is_closed", &RunFile::is_closed)
      .def_prop_ro("is_cut", &RunFile::is_cut)
      .def("described", [](RunFile &file) {
        nb::list all;
        for (const RunFile::Described &each : file.described())
          all.append(nb::make_tuple(each.kind == runs::kSite, each.site, AsBytes(each.text)));
        return all;
      });
  nb::class_<runs::Earlier>(m, "EarlierRecords").def(nb::init<>());
  nb::class_<Records>(m, "RunRecords")
      .def(nb::init<std::vector<std::shared_ptr<RunFile>>, runs::Earlier *>(), nb::arg("files"),
           nb::arg("earlier").none() = nb::none(), without_lock)
      .def("select", &Records::select, nb::arg("sites").none(), nb::arg("devices").none(), nb::arg("files").none(),
           nb::arg("since"), without_lock)
      .def("last", &Records::last, without_lock)
      .def("newest", &Records::newest, without_lock)
      .def("count",
           [](const Records &records) {
             nb::list counts;
             for (const auto &[of, count] : records.count())
               counts.append(nb::make_tuple(of.first, of.second, count.count, count.first, count.last));
             return counts;
           })
      .def("__len__", &Records::size)
      .def("read",
           [](const Records &records, size_t first, size_t last) {
             nb::object bytes;
             const auto files = records.read(first, last, [&](size_t size) {
               bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
               if (!bytes.is_valid()) throw nb::python_error();
               return PyBytes_AsString(bytes.ptr());
             });
             return nb::make_tuple(bytes, nb::bytes(files.data(), files.size() * sizeof files[0]));
           })
      // Each as (file, kind, token, site, device, time, text).
      .def("events", [](const Records &records) {
        nb::list events;
        for (const Records::Event &event : records.events()) {
          const RecordHeader &header = event.header;
          events.append(nb::make_tuple(event.file, static_cast<int>(header.kind), ToTuple(header.token), header.site,
                                       header.device, header.time, AsBytes(event.text)));
        }
        return events;
      });
});

} // namespace effects
