// What the native tests share: CHECK, deterministic random numbers, and records built by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "dispatch/native/wire.h"

namespace check {

// The seed of a randomized test, printed by a CHECK that fails, so that the run can be repeated.
inline thread_local uint64_t seed = 0;

[[noreturn]] inline void Fail(const char *file, int line, const char *condition, const std::string &why) {
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed (seed %llu) %s\n", file, line, condition,
               static_cast<unsigned long long>(seed), why.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

template <typename A, typename B>
void Equal(const char *file, int line, const char *condition, const A &a, const B &b) {
  if (!(a == b)) Fail(file, line, condition, std::to_string(a) + " vs " + std::to_string(b));
}

inline void Strings(const char *file, int line, const std::vector<std::string> &seen,
                    const std::vector<std::string> &expected) {
  if (seen == expected) return;
  std::string why = "\n  seen:    ";
  for (const auto &one : seen) why += " " + one;
  why += "\n  expected:";
  for (const auto &one : expected) why += " " + one;
  Fail(file, line, "seen == expected", why);
}

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) ::check::Fail(__FILE__, __LINE__, #condition, "");                                               \
  } while (0)
#define CHECK_EQ(a, b) ::check::Equal(__FILE__, __LINE__, #a " == " #b, a, b)
#define CHECK_SEEN(seen, ...) ::check::Strings(__FILE__, __LINE__, seen, std::vector<std::string> __VA_ARGS__)

// A test of the binary: `TEST(test_some_behaviour) { ... }`. Its name is that of its file and its own.
struct Test {
  std::string name;
  void (*run)();
};
inline std::vector<Test> &Tests() {
  static std::vector<Test> tests;
  return tests;
}
inline bool AddTest(const char *file, const char *name, void (*run)()) {
  std::string stem(file);
  stem = stem.substr(stem.rfind('/') + 1);
  Tests().push_back({stem.substr(0, stem.rfind('.')) + "." + name, run});
  return true;
}
#define TEST(name)                                                                                                     \
  void name();                                                                                                         \
  [[maybe_unused]] const bool added_##name = ::check::AddTest(__FILE__, #name, &name);                                 \
  void name()

// How often a randomized test does what it does: so many times, or EFFECTS_NATIVE_TIMES times as often.
inline uint64_t Times(uint64_t few) {
  const char *const factor = std::getenv("EFFECTS_NATIVE_TIMES");
  return few * (factor == nullptr ? 1 : std::strtoull(factor, nullptr, 10));
}

// splitmix64: a few lines, the same numbers everywhere.
class Random {
public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In [0, n).
  uint64_t below(uint64_t n) { return next() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

private:
  uint64_t state_;
};

inline effects::Token MakeToken(uint32_t thread, uint32_t domain, uint32_t epoch, uint32_t index) {
  return {effects::StreamOf(thread, domain), epoch, 0, index};
}

} // namespace check
