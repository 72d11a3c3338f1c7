// What the tests of Replies share: somebody who waits, and notes what they are told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "dispatch/native/drain/replies.h"

namespace effects {

// What waiters were told, in the order of their being told: "name:result,result" or "name!error".
class Heard {
public:
  Replies::Waiter waiter(const std::string &name) {
    return [this, name](const Answer &answer) {
      std::string told = name + (answer.error.empty() ? ":" : "!" + answer.error);
      for (size_t i = 0; i < answer.results.size(); ++i)
        told += (i == 0 ? "" : ",") +
                std::string(static_cast<const char *>(answer.results[i].data), answer.results[i].size);
      seen.push_back(told);
      return Replies::Continuation();
    };
  }
  std::vector<std::string> take() { return std::exchange(seen, {}); }
  std::vector<std::string> seen;
};

// Gives an answer whose bytes are gone when this returns.
inline void AnswerWith(Replies &replies, uint32_t number, std::vector<std::string> results) {
  Answer answer;
  for (const std::string &bytes : results) answer.results.push_back({bytes.data(), bytes.size()});
  replies.answer(number, answer);
  for (std::string &bytes : results) std::fill(bytes.begin(), bytes.end(), '?');
}

inline std::set<uint32_t> Open(Replies &replies) {
  const std::vector<uint32_t> numbers = replies.open();
  const std::set<uint32_t> all(numbers.begin(), numbers.end());
  CHECK_EQ(all.size(), numbers.size());
  return all;
}

} // namespace effects
