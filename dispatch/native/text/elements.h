// The elements of an array as text, as NumPy shows and aligns them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "format.h"

namespace effects {

// A list of words in one string.
class Words {
public:
  // Text that is appended here is the next word.
  std::string text;

  void end() { ends_.push_back(text.size()); }
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text).substr(begin, ends_[i] - begin);
  }

private:
  std::vector<size_t> ends_;
};

// The words of the shown elements.
Words Show(const Piece &piece, const std::vector<const std::byte *> &elements, const PrintOptions &options);

} // namespace effects
