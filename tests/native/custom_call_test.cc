// What handlers say through `token_effects::Call`, and their errors.
#include "token_effects/custom_call.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace {

std::vector<std::pair<int32_t, std::string>> said;
const char *wrong = nullptr;

const char *Publish(int32_t level, const char *text, size_t size) {
  said.emplace_back(level, std::string(text, size));
  return wrong;
}

const token_effects::Functions kFunctions{sizeof kFunctions, token_effects::Functions::kType, nullptr, &Publish};

TEST(test_custom_call_lines) {
  const token_effects::Call call(&kFunctions);
  call.Print("x = ", 1, ' ', 0.5, std::string(" and\0more", 9));
  call.Print();
  CHECK(said.size() == 2 && said[0].first == token_effects::kLine && said[1].second.empty());
  CHECK(said[0].second == std::string("x = 1 0.5 and\0more", 18));
  said.clear();
}

TEST(test_custom_call_events) {
  const token_effects::Call call(&kFunctions);
  call.Log(token_effects::kInfo, "step");
  call.Log(token_effects::kError, "a \"b\"\n\\",
           {{"i", -7},
            {"large", uint64_t{1} << 63},
            {"f", 0.1f},
            {"d", 1e300},
            {"whole", 2.0},
            {"nan", std::nan("")},
            {"inf", -INFINITY},
            {"yes", true},
            {"text", std::string("\x01\t\x1f\x7f")}});
  CHECK(said[0] == std::pair(20, std::string("{\"event\":\"step\",\"fields\":{}}")));
  CHECK(said[1].first == 40);
  CHECK(said[1].second ==
        "{\"event\":\"a \\\"b\\\"\\u000a\\\\\",\"fields\":{\"i\":-7,\"large\":9223372036854775808,"
        "\"f\":0.100000001,\"d\":1.0000000000000001e+300,\"whole\":2.0,\"nan\":NaN,\"inf\":-Infinity,\"yes\":true,"
        "\"text\":\"\\u0001\\u0009\\u001f\x7f\"}}");
  said.clear();
}

TEST(test_custom_call_refusals) {
  const token_effects::Call call(&kFunctions);
  wrong = "no place";
  std::string caught;
  try {
    call.Print("lost");
  } catch (const std::runtime_error &error) {
    caught = error.what();
  }
  CHECK(caught == "no place");
  wrong = nullptr;
  const auto error = token_effects::Error(xla::ffi::ErrorCode::kAborted, "It happened", "It must not.", "Do another");
  CHECK(error.errc() == xla::ffi::ErrorCode::kAborted);
  CHECK(error.message() == "It happened. It must not. Do another.");
}

} // namespace
