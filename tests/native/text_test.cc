// Texts of arrays. What NumPy makes of them is compared in Python: tests/effects/test_native_text.py.
#include "../../dispatch/native/text/format.h"

#include <cstring>
#include <string>
#include <vector>

#include "check.h"

namespace effects {
namespace {

template <typename T>
std::string Text(Scalar type, std::vector<int64_t> shape, const std::vector<T> &values,
                 const PrintOptions &options = {}) {
  Plan plan(2);
  plan[0].literal = "x = ";
  plan[0].has_field = true;
  plan[0].type = type;
  plan[0].offset = 8;
  plan[0].shape = std::move(shape);
  plan[1].literal = "\n";
  std::vector<std::byte> payload(8 + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(payload.data() + 8, values.data(), values.size() * sizeof(T));
  std::string text;
  Format(text, plan, payload.data(), options);
  return text;
}

TEST(test_rows_are_aligned) {
  const std::vector<float> values{1, 2.5, -3, 1e-3f, 0, 100};
  CHECK(Text(Scalar::kFloat32, {2, 3}, values) == "x = [[ 1.0e+00  2.5e+00 -3.0e+00]\n [ 1.0e-03  0.0e+00  1.0e+02]]\n");
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

TEST(test_equal_options_have_one_number) {
  PrintOptions options;
  CHECK_EQ(NumberOf(options), uint32_t{0});
  options.precision = 3;
  const uint32_t number = NumberOf(options);
  CHECK_EQ(NumberOf(options), number);
  CHECK_EQ(PrintOptionsOf(number).precision, 3);
}

} // namespace
} // namespace effects
