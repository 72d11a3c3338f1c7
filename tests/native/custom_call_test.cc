// What handlers say through `token_effects::Call`, and their errors.
#include "token_effects/custom_call.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

namespace {

std::vector<std::string> said;
const char *wrong = nullptr;

const char *Publish(const char *text, size_t size) {
  said.emplace_back(text, size);
  return wrong;
}

const token_effects::Functions kFunctions{sizeof kFunctions, token_effects::Functions::kType, nullptr, &Publish};

TEST(test_custom_call_lines) {
  const token_effects::Call call(&kFunctions);
  call.Print("x = ", 1, ' ', 0.5, std::string(" and\0more", 9));
  call.Print();
  CHECK(said.size() == 2 && said[1].empty());
  CHECK(said[0] == std::string("x = 1 0.5 and\0more", 18));
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
