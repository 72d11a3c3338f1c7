// Texts of arrays. What NumPy makes of them is compared in Python: tests/effects/test_native_text.py.
#include "dispatch/native/text/format.h"
#include "dispatch/native/text/quotes.h"
#include "dispatch/native/text/rows.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

namespace effects::text_test {
namespace {

template <typename T>
std::string Text(Scalar type, std::vector<int64_t> shape, const std::vector<T> &values,
                 const PrintOptions &options = {}) {
  Plan plan;
  plan.pieces.resize(2);
  Piece &piece = plan.pieces[0];
  piece.literal = "x = ";
  piece.has_field = true;
  piece.type = type;
  piece.offset = 8;
  piece.shape = std::move(shape);
  plan.pieces[1].literal = "\n";
  std::vector<std::byte> payload(8 + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(payload.data() + 8, values.data(), values.size() * sizeof(T));
  std::string text;
  Format(text, plan, payload.data(), {}, options);
  return text;
}

TEST(test_rows_are_aligned) {
  const std::vector<float> values{1, 2.5, -3, 1e-3f, 0, 100};
  CHECK(Text(Scalar::kFloat32, {2, 3}, values) ==
        "x = [[ 1.0e+00  2.5e+00 -3.0e+00]\n [ 1.0e-03  0.0e+00  1.0e+02]]\n");
}

TEST(test_middles_are_left_out) {
  std::vector<int64_t> values(24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i);
  PrintOptions options;
  options.threshold = 10;
  options.edgeitems = 1;
  CHECK(Text(Scalar::kInt64, {4, 6}, values, options) == "x = [[ 0 ...  5]\n ...\n [18 ... 23]]\n");
}

TEST(test_lines_are_wrapped) {
  PrintOptions options;
  options.linewidth = 1; // one number in each line
  CHECK(Text(Scalar::kUint8, {3}, std::vector<uint8_t>{1, 20, 255}, options) == "x = [  1\n  20\n 255]\n");
}

TEST(test_arrays_without_elements) { CHECK(Text(Scalar::kFloat64, {0, 3}, std::vector<double>{}) == "x = []\n"); }

TEST(test_strings_of_json) {
  std::string text = "x = ";
  text += "\"a\\\n\x01\x7F \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80";
  QuoteString(text, 4);
  CHECK(text == "x = \"\\\"a\\\\\\n\\u0001\\u007f \\u00e4 \\u20ac \\ud83d\\ude00\"");
}

TEST(test_rows_of_several_sites) {
  const auto record = [](uint64_t site, uint64_t value) {
    RecordHeader header{};
    header.site = site;
    header.token = {7 << kDomainBits, 1, 0, 3};
    header.payload_size = sizeof value;
    std::string bytes(reinterpret_cast<const char *>(&header), sizeof header);
    return bytes.append(reinterpret_cast<const char *>(&value), sizeof value);
  };
  Plan plan;
  plan.pieces.resize(2);
  Piece &value = plan.pieces[0], &thread = plan.pieces[1];
  value.has_field = thread.has_field = true;
  value.type = Scalar::kUint64;
  value.style = Style::kJson;
  thread.literal = " of ";
  thread.type = Scalar::kThread;
  thread.offset = static_cast<int64_t>(offsetof(RecordHeader, token)) - static_cast<int64_t>(sizeof(RecordHeader));
  const std::string records = record(5, 11) + record(6, 12) + record(5, 13);
  const Rows rows = FormatRows(records, {{5, &plan}}, PrintOptions{});
  CHECK(rows.text == "11 of 713 of 7");
  CHECK(rows.ends == (std::vector<uint64_t>{7, 14}));
  CHECK(SitesOf(records) == (std::vector<uint64_t>{5, 6}));
}

TEST(test_lanes_that_have_the_effect) {
  // Two axes: the value differs along the first, and the mask along the second.
  const std::vector<uint8_t> payload{10, 20, 1, 0, 1};
  Plan plan;
  plan.pieces.resize(3);
  for (Piece &piece : plan.pieces) piece.has_field = true;
  plan.pieces[0].type = plan.pieces[1].type = Scalar::kLane;
  plan.pieces[1].offset = 1;
  plan.pieces[1].literal = ",";
  plan.pieces[2].literal = ": ";
  plan.pieces[2].type = Scalar::kUint8;
  plan.pieces[2].strides = {1, 0};
  plan.lanes = {2, 3};
  plan.mask.emplace();
  plan.mask->offset = 2;
  plan.mask->strides = {0, 1};
  std::string text;
  std::vector<size_t> ends;
  FormatLanes(text, plan, reinterpret_cast<const std::byte *>(payload.data()), PrintOptions{},
              [&] { ends.push_back(text.size()); });
  CHECK(text == "0,0: 100,2: 101,0: 201,2: 20");
  CHECK(ends == (std::vector<size_t>{7, 14, 21, 28}));
  plan.lanes = {2, 0};
  FormatLanes(text, plan, reinterpret_cast<const std::byte *>(payload.data()), PrintOptions{}, [] { CHECK(false); });
}

TEST(test_equal_options_have_one_number) {
  PrintOptions options;
  CHECK_EQ(NumberOf(options), uint32_t{0});
  options.precision = 3;
  const uint32_t number = NumberOf(options);
  CHECK_EQ(NumberOf(options), number);
  CHECK_EQ(PrintOptionsOf(number).precision, 3);
}

} // namespace
} // namespace effects::text_test
