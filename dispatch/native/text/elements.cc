#include "elements.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "digits.h"

namespace effects {
namespace {

using Elements = std::vector<const std::byte *>;

template <typename T>
std::vector<T> LoadAll(const Elements &elements) {
  std::vector<T> values;
  values.reserve(elements.size());
  for (const std::byte *at : elements) values.push_back(Load<T>(at));
  return values;
}

// Integers, right-aligned.
Words ShowIntegers(const Piece &piece, const Elements &elements) {
  Words each;
  size_t width = 0;
  for (const std::byte *at : elements) {
    FormatScalar(each.text, piece, at);
    each.end();
    width = std::max(width, each[each.size() - 1].size());
  }
  Words words;
  for (size_t i = 0; i < each.size(); ++i) {
    words.text.append(width - each[i].size(), ' ');
    words.text += each[i];
    words.end();
  }
  return words;
}

// Floating-point numbers, aligned at the point.

// The limits of positional form: from this magnitude on, or below this fraction of the largest, numbers are scientific.
template <typename T>
bool NeedsExponents(double least, double most, bool suppress) {
  const T small = static_cast<T>(least), large = static_cast<T>(most);
  return large >= static_cast<T>(std::is_same_v<T, float> ? 1e6 : 1e8) ||
         (!suppress && (small < static_cast<T>(0.0001) || large / small > T{1000}));
}

// The numbers of an array, and the form of all of them.
template <typename T>
class Floats {
public:
  Floats(std::vector<T> values, const PrintOptions &options) : values_(std::move(values)) {
    double least = 0, most = 0;
    bool any_finite = false, any_negative_infinite = false, all_finite = true;
    digits_.reserve(values_.size());
    for (const T value : values_) {
      const double number = value;
      if (!std::isfinite(number)) {
        all_finite = false;
        any_negative_infinite = any_negative_infinite || number < 0;
        digits_.push_back({});
        continue;
      }
      digits_.push_back(Shortest(value));
      any_finite = true;
      const double magnitude = std::fabs(number);
      if (magnitude == 0) continue;
      most = std::max(most, magnitude);
      least = least == 0 ? magnitude : std::min(least, magnitude);
    }
    scientific_ = most != 0 && NeedsExponents<T>(least, most, options.suppress);
    shown_.precision = options.precision;
    if (any_finite) measure();
    if (!all_finite) left_ = std::max(left_, 3 + any_negative_infinite - (right_ + 1));
  }

  void append(std::string &out, size_t i) const {
    const double number = values_[i];
    if (!std::isfinite(number)) return append_not_finite(out, number);
    word_.clear();
    append_number(word_, i);
    const size_t point = word_.find('.');
    out.append(static_cast<size_t>(std::max(0, left_ - static_cast<int>(point))), ' ');
    out += word_;
    if (scientific_) return;
    const int behind = static_cast<int>(word_.size() - point - 1);
    out.append(static_cast<size_t>(std::max(0, right_ - behind)), ' ');
  }

private:
  void append_number(std::string &out, size_t i) const {
    const double number = values_[i];
    if (std::signbit(number)) out += '-';
    if (scientific_)
      AppendScientific(out, std::fabs(number), digits_[i], shown_, exponent_digits_);
    else
      AppendPositional(out, std::fabs(number), digits_[i], shown_);
  }

  void append_not_finite(std::string &out, double number) const {
    const std::string_view word = std::isnan(number) ? "nan" : number < 0 ? "-inf" : "inf";
    out.append(static_cast<size_t>(std::max(0, left_ + right_ + 1 - static_cast<int>(word.size()))), ' ');
    out += word;
  }

  // Measures the numbers one by one, and from that chooses the form of all.
  void measure() {
    int exponent = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (!std::isfinite(values_[i])) continue;
      word_.clear();
      append_number(word_, i);
      const size_t point = word_.find('.');
      const size_t end = scientific_ ? word_.rfind('e') : word_.size();
      left_ = std::max(left_, static_cast<int>(point));
      right_ = std::max(right_, static_cast<int>(end - point - 1));
      if (scientific_) exponent = std::max(exponent, static_cast<int>(word_.size() - end - 2));
    }
    if (scientific_) {
      exponent_digits_ = exponent;
      shown_.precision = shown_.min_digits = right_;
      shown_.keep_zeros = true;
      right_ += exponent + 2;
    } else {
      shown_.min_digits = 0;
    }
  }

  const std::vector<T> values_;
  std::vector<Digits> digits_; // of the finite numbers
  bool scientific_ = false;
  Shown shown_;
  int exponent_digits_ = 2;
  int left_ = 0, right_ = 0; // the characters before and after the point
  mutable std::string word_;
};

template <typename T>
Words ShowFloats(const Elements &elements, const PrintOptions &options) {
  const Floats<T> floats(LoadAll<T>(elements), options);
  Words words;
  for (size_t i = 0; i < elements.size(); ++i) {
    floats.append(words.text, i);
    words.end();
  }
  return words;
}

// NumPy does not align there.
Words ShowBfloat16(const Elements &elements) {
  Words words;
  for (const std::byte *at : elements) {
    AppendBfloat16(words.text, Load<uint16_t>(at));
    words.end();
  }
  return words;
}

} // namespace

Words Show(const Piece &piece, const Elements &elements, const PrintOptions &options) {
  if (piece.conversion == 0) {
    switch (piece.type) {
    case Scalar::kInt8:
    case Scalar::kInt16:
    case Scalar::kInt32:
    case Scalar::kInt64:
    case Scalar::kUint8:
    case Scalar::kUint16:
    case Scalar::kUint32:
    case Scalar::kUint64:
      return ShowIntegers(piece, elements);
    case Scalar::kFloat32:
      return ShowFloats<float>(elements, options);
    case Scalar::kFloat64:
      return ShowFloats<double>(elements, options);
    case Scalar::kBfloat16:
      return ShowBfloat16(elements);
    case Scalar::kBool:
    case Scalar::kThread:
    case Scalar::kDevice:
    case Scalar::kLane:
      break;
    }
  }
  Words words; // not aligned
  for (const std::byte *at : elements) {
    // As wide as "False".
    if (piece.type == Scalar::kBool && !piece.shape.empty() && Load<uint8_t>(at) != 0) words.text += ' ';
    FormatScalar(words.text, piece, at);
    words.end();
  }
  return words;
}

} // namespace effects
