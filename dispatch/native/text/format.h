// Formats a record into text that is byte for byte that of Python, NumPy, or Python's modules `json` and `csv`.
// Everything else is left to Python: a site gets a plan only if all its fields are simple.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../wire.h"
#include "options.h"

namespace effects {

// The conversion of a field's operand.
enum class Style : int {
  kFormat, // as `str.format` does
  kString, // as `str` does, which differs for NumPy's numbers
  kRepr,   // as `repr` does
  kJson,   // as JSON
};

// A span that begins after a piece's literal or ends after its field, and is escaped as a whole.
enum class Wrap : int {
  kNone,
  kBegin,
  kEndString, // a string of JSON
  kEndLine,   // a line: newlines in it become spaces
};

// A literal and a field: an operand of this type, at this byte of the payload.
struct Piece {
  std::string literal; // before the field
  bool has_field = false;
  Scalar type = Scalar::kBool;
  int64_t offset = 0;           // negative: in the record's header; of Scalar::kLane the axis
  std::vector<int64_t> strides; // in bytes, along each axis of lanes; empty if all lanes have one value
  Style style = Style::kFormat;
  char conversion = 0; // 0: no specification; 'e', 'f', 'g': the specification's type
  int precision = 0;
  std::vector<int64_t> shape;            // of an array; a scalar has none
  std::string dtype;                     // the type's name in `repr`; empty if `repr` omits it
  const PrintOptions *options = nullptr; // for an array; null: those that are in force at the call
  Wrap wrap = Wrap::kNone;
};

// The plan by which records of a site become text.
struct Plan {
  std::vector<Piece> pieces;
  std::vector<int64_t> lanes; // the number along each axis; each lane has a text of its own
  std::optional<Piece> mask;  // the lanes that have the effect; none: all
};

// True if each record has one text, and all texts have equally many lines.
bool IsRegular(const Plan &plan);

// The number of a lane along each axis.
using Lane = std::vector<int64_t>;

// Appends the text of a record in one lane. Any thread.
void Format(std::string &out, const Plan &plan, const std::byte *payload, const Lane &lane,
            const PrintOptions &in_force);

// The address of a field in one lane.
const std::byte *At(const Piece &piece, const std::byte *payload, const Lane &lane);

// Appends the texts of the lanes that have the effect, in order; one text if there are no lanes. Calls end() after
// each.
template <typename End>
void FormatLanes(std::string &out, const Plan &plan, const std::byte *payload, const PrintOptions &in_force,
                 End &&end) {
  Lane lane(plan.lanes.size(), 0);
  for (const int64_t count : plan.lanes)
    if (count == 0) return;
  for (;;) {
    if (!plan.mask || *At(*plan.mask, payload, lane) != std::byte{0}) {
      Format(out, plan, payload, lane, in_force);
      end();
    }
    size_t axis = lane.size(); // the last axis varies fastest
    while (axis != 0 && ++lane[axis - 1] == plan.lanes[axis - 1]) lane[--axis] = 0;
    if (axis == 0) return;
  }
}

// Appends the text of one value without dimensions.
void FormatScalar(std::string &out, const Piece &piece, const std::byte *at);

} // namespace effects
