#include "texts.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../text/rows.h"

namespace effects {

namespace nb = nanobind;

namespace {

// A plan that a Python object keeps.
struct KeptPlan {
  Plan plan;
};

std::string_view View(const nb::bytes &bytes) { return {bytes.c_str(), bytes.size()}; }

nb::bytes ToBytes(const void *data, size_t size) { return nb::bytes(static_cast<const char *>(data), size); }

} // namespace

void DefineTexts(nb::module_ &m) {
  m.def("number_of_print_options", &ToNumberOfPrintOptions);

  // The text that the drain makes of a record.
  m.def("text", [](nb::handle plan, nb::bytes payload, uint32_t options) {
    std::string text;
    FormatLanes(text, ToPlan(plan), static_cast<const std::byte *>(payload.data()), PrintOptionsOf(options), [] {});
    return text;
  });

  nb::class_<KeptPlan>(m, "Plan").def("__init__",
                                      [](KeptPlan *kept, nb::handle plan) { new (kept) KeptPlan{ToPlan(plan)}; });

  // The lines of records, and their ends as 64-bit numbers. Records of sites without a plan have none.
  m.def("rows", [](nb::bytes records, nb::dict plans, uint32_t options) {
    std::unordered_map<uint64_t, const Plan *> known;
    for (const auto [site, plan] : plans) known[nb::cast<uint64_t>(site)] = &nb::cast<const KeptPlan &>(plan).plan;
    Rows rows;
    {
      nb::gil_scoped_release release; // the arguments keep the bytes alive
      rows = FormatRows(View(records), known, PrintOptionsOf(options));
    }
    return nb::make_tuple(ToBytes(rows.text.data(), rows.text.size()),
                          ToBytes(rows.ends.data(), rows.ends.size() * sizeof(uint64_t)));
  });

  m.def("sites_of", [](nb::bytes records) { return SitesOf(View(records)); });
  m.def("select_records", [](nb::bytes records, const std::vector<uint64_t> &sites) {
    const Selected selected = SelectRecords(View(records), sites);
    return nb::make_tuple(ToBytes(selected.records.data(), selected.records.size()), selected.count);
  });
}

namespace {

Piece ToPiece(nb::handle given) {
  Piece piece;
  piece.literal = nb::cast<std::string>(given[0]);
  if (!nb::object(given[1]).is_none()) {
    piece.has_field = true;
    piece.type = static_cast<Scalar>(nb::cast<int>(given[1]));
  }
  piece.offset = nb::cast<int64_t>(given[2]);
  piece.strides = nb::cast<std::vector<int64_t>>(given[3]);
  piece.style = static_cast<Style>(nb::cast<int>(given[4]));
  const auto conversion = nb::cast<std::string>(given[5]);
  piece.conversion = conversion.empty() ? 0 : conversion[0];
  piece.precision = nb::cast<int>(given[6]);
  piece.shape = nb::cast<std::vector<int64_t>>(given[7]);
  piece.dtype = nb::cast<std::string>(given[8]);
  if (const nb::object options = given[9]; !options.is_none())
    piece.options = &PrintOptionsOf(ToNumberOfPrintOptions(options));
  piece.wrap = static_cast<Wrap>(nb::cast<int>(given[10]));
  return piece;
}

} // namespace

Plan ToPlan(nb::handle given) {
  Plan plan;
  for (nb::handle piece : nb::list(given[0])) plan.pieces.push_back(ToPiece(piece));
  plan.lanes = nb::cast<std::vector<int64_t>>(given[1]);
  if (const nb::object mask = given[2]; !mask.is_none()) plan.mask = ToPiece(mask);
  return plan;
}

uint32_t ToNumberOfPrintOptions(nb::handle options) {
  PrintOptions all;
  all.threshold = nb::cast<int64_t>(options[0]);
  all.edgeitems = nb::cast<int64_t>(options[1]);
  all.linewidth = nb::cast<int64_t>(options[2]);
  all.precision = nb::cast<int>(options[3]);
  all.suppress = nb::cast<bool>(options[4]);
  return NumberOf(all);
}

} // namespace effects
