// Formats a record into text where the result is byte for byte what Python, NumPy, or its modules `json` and `csv`
// give. Everything else is left to Python: a site gets a plan only if all its fields are simple.
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

// How a field shows its operand.
enum class Style : int {
  kFormat, // as `str.format` does
  kString, // as `str` does, to which NumPy's numbers are not Python's
  kRepr,   // as `repr` does
  kJson,   // as JSON
};

// What begins behind a piece's literal, or ends behind its field, and is written otherwise as a whole.
enum class Wrap : int {
  kNone,
  kBegin,
  kEndString, // a string of JSON
  kEndLine,   // a line, in which other lines go on
};

// What a field shows: an operand of this type, at this byte of the payload.
struct Piece {
  std::string literal; // comes before the field
  bool has_field = false;
  Scalar type = Scalar::kBool;
  int64_t offset = 0;           // what is less than 0 lies in the record's header; of Scalar::kLane the axis
  std::vector<int64_t> strides; // in bytes, along each axis of lanes; empty if it is the same in all of them
  Style style = Style::kFormat;
  char conversion = 0; // 0: no specification; 'e', 'f', 'g': as in the specification
  int precision = 0;
  std::vector<int64_t> shape;            // of an array; a scalar has none
  std::string dtype;                     // how `repr` names the type, unless it does not
  const PrintOptions *options = nullptr; // for an array; null: those that are in force at the call
  Wrap wrap = Wrap::kNone;
};

// How records of a site become text.
struct Plan {
  std::vector<Piece> pieces;
  std::vector<int64_t> lanes; // how many there are along each axis; each lane is a text of its own
  std::optional<Piece> mask;  // says which lanes have the effect; none: all
};

// Whether each of its records is one text, of as many lines as any other's.
bool IsRegular(const Plan &plan);

// The number of a lane along each axis.
using Lane = std::vector<int64_t>;

// Appends the text of a record in one lane. Any thread.
void Format(std::string &out, const Plan &plan, const std::byte *payload, const Lane &lane,
            const PrintOptions &in_force);

// Where a field of a record lies in one lane.
const std::byte *At(const Piece &piece, const std::byte *payload, const Lane &lane);

// Appends the texts of the lanes that have the effect, in order; one if there are no lanes. Calls end() behind each.
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
    size_t axis = lane.size(); // the last runs fastest
    while (axis != 0 && ++lane[axis - 1] == plan.lanes[axis - 1]) lane[--axis] = 0;
    if (axis == 0) return;
  }
}

// Appends the text of one value without dimensions.
void FormatScalar(std::string &out, const Piece &piece, const std::byte *at);

} // namespace effects
