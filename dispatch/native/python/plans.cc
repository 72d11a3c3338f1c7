#include "plans.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

namespace effects {

namespace nb = nanobind;

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
  piece.texts = nb::cast<std::vector<std::string>>(given[8]);
  piece.dtype = nb::cast<std::string>(given[9]);
  if (const nb::object options = given[10]; !options.is_none())
    piece.options = &PrintOptionsOf(ToNumberOfPrintOptions(options));
  piece.wrap = static_cast<Wrap>(nb::cast<int>(given[11]));
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
  all.mode = static_cast<FloatMode>(nb::cast<int>(options[4]));
  all.suppress = nb::cast<bool>(options[5]);
  all.sign = nb::cast<std::string>(options[6]).at(0);
  all.nan = nb::cast<std::string>(options[7]);
  all.inf = nb::cast<std::string>(options[8]);
  return NumberOf(all);
}

} // namespace effects
