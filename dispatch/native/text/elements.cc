#include "elements.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "digits.h"

namespace effects {
namespace {

using Elements = std::vector<const std::byte *>;

// Integers, right-aligned.

template <typename T>
void AppendSigned(std::string &out, T value, char sign) {
  if (sign != '-' && value >= 0) out += sign;
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

template <typename T>
Words ShowIntegers(const Elements &elements, char sign) {
  std::vector<T> values;
  values.reserve(elements.size());
  for (const std::byte *at : elements) values.push_back(Load<T>(at));
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (sign == ' ' && *least < 0) sign = '-';
  std::string longest[2];
  AppendSigned(longest[0], *most, sign);
  AppendSigned(longest[1], *least, '-');
  const size_t width = std::max(longest[0].size(), longest[1].size());
  Words words;
  std::string word;
  for (const T value : values) {
    word.clear();
    AppendSigned(word, value, sign);
    words.text.append(width > word.size() ? width - word.size() : 0, ' ');
    words.text += word;
    words.end();
  }
  return words;
}

// Floating-point numbers, aligned at their points.

// From here on a type's numbers are shown in scientific form, and below which part of the largest, too.
template <typename T>
bool NeedsExponents(double least, double most, bool suppress) {
  if constexpr (std::is_same_v<T, Half>) {
    // NumPy compares in 16 bits: 0.0001 is 0.00010001659 there, and what rounds to 1000 is up to 1000.25.
    const float ratio = static_cast<float>(most) / static_cast<float>(least);
    return most >= 1e3 || (!suppress && (least < 0.00010001659393310547 || ratio > 1000.25f));
  } else {
    const T small = static_cast<T>(least), large = static_cast<T>(most);
    return large >= static_cast<T>(std::is_same_v<T, float> ? 1e6 : 1e8) ||
           (!suppress && (small < static_cast<T>(0.0001) || large / small > T{1000}));
  }
}

// The numbers of an array, and how all of them are shown.
template <typename T>
class Floats {
public:
  // `sign`: as of the print options.
  Floats(std::vector<T> values, const PrintOptions &options, char sign)
      : values_(std::move(values)), options_(options), sign_(sign) {
    double least = 0, most = 0;
    bool any_finite = false, any_negative = false, any_negative_infinite = false, all_finite = true;
    digits_.reserve(values_.size());
    for (const T value : values_) {
      const double number = ToDouble(value);
      if (!std::isfinite(number)) {
        all_finite = false;
        any_negative_infinite = any_negative_infinite || number < 0;
        digits_.push_back({});
        continue;
      }
      digits_.push_back(Shortest(value));
      any_finite = true;
      any_negative = any_negative || std::signbit(number);
      const double magnitude = std::fabs(number);
      if (magnitude == 0) continue;
      most = std::max(most, magnitude);
      least = least == 0 ? magnitude : std::min(least, magnitude);
    }
    scientific_ = most != 0 && NeedsExponents<T>(least, most, options.suppress);
    shown_.precision = options.mode == FloatMode::kUnique ? -1 : options.precision;
    if (any_finite) measure();
    if (sign_ == ' ' && !any_negative) ++left_;
    if (!all_finite) {
      const bool wide = sign_ != '-' || any_negative_infinite;
      const int right = right_ + 1;
      left_ = std::max(
          {left_, static_cast<int>(options.nan.size()) - right, static_cast<int>(options.inf.size()) + wide - right});
    }
  }

  void append(std::string &out, size_t i) const {
    const double number = ToDouble(values_[i]);
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
    const double number = ToDouble(values_[i]);
    if (std::signbit(number))
      out += '-';
    else if (sign_ == '+')
      out += '+';
    if (scientific_)
      AppendScientific(out, std::fabs(number), digits_[i], shown_, exponent_digits_);
    else
      AppendPositional(out, std::fabs(number), digits_[i], shown_);
  }

  void append_not_finite(std::string &out, double number) const {
    std::string word(std::isnan(number) ? sign_ == '+' ? "+" : "" : number < 0 ? "-" : sign_ == '+' ? "+" : "");
    word += std::isnan(number) ? options_.nan : options_.inf;
    out.append(static_cast<size_t>(std::max(0, left_ + right_ + 1 - static_cast<int>(word.size()))), ' ');
    out += word;
  }

  // Finds out how many characters the numbers take by themselves, and from that how all of them are shown.
  void measure() {
    const bool fixed = options_.mode == FloatMode::kFixed;
    shown_.unique = !fixed;
    shown_.keep_zeros = fixed;
    int exponent = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (!std::isfinite(ToDouble(values_[i]))) continue;
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
    } else if (fixed || options_.mode == FloatMode::kMaxprecEqual) {
      shown_.precision = shown_.min_digits = right_;
      shown_.keep_zeros = true;
    } else {
      shown_.min_digits = 0;
    }
  }

  const std::vector<T> values_;
  const PrintOptions &options_;
  const char sign_;
  std::vector<Digits> digits_; // those of the numbers that are finite
  bool scientific_ = false;
  Shown shown_;
  int exponent_digits_ = 2;
  int left_ = 0, right_ = 0; // how many characters there are ahead of the point and behind it
  mutable std::string word_;
};

template <typename T>
std::vector<T> LoadAll(const Elements &elements, size_t offset = 0) {
  std::vector<T> values;
  values.reserve(elements.size());
  for (const std::byte *at : elements) values.push_back(Load<T>(at + offset));
  return values;
}

template <typename T>
Words ShowFloats(const Elements &elements, const PrintOptions &options) {
  const Floats<T> floats(LoadAll<T>(elements), options, options.sign);
  Words words;
  for (size_t i = 0; i < elements.size(); ++i) {
    floats.append(words.text, i);
    words.end();
  }
  return words;
}

template <typename T>
Words ShowComplex(const Elements &elements, const PrintOptions &options) {
  const Floats<T> real(LoadAll<T>(elements), options, options.sign);
  const Floats<T> imaginary(LoadAll<T>(elements, sizeof(T)), options, '+');
  Words words;
  std::string word;
  for (size_t i = 0; i < elements.size(); ++i) {
    real.append(words.text, i);
    word.clear();
    imaginary.append(word, i);
    word.insert(word.find_last_not_of(' ') + 1, 1, 'j'); // ahead of the spaces behind it
    words.text += word;
    words.end();
  }
  return words;
}

// NumPy aligns nothing there.
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
      return ShowIntegers<int8_t>(elements, options.sign);
    case Scalar::kInt16:
      return ShowIntegers<int16_t>(elements, options.sign);
    case Scalar::kInt32:
      return ShowIntegers<int32_t>(elements, options.sign);
    case Scalar::kInt64:
      return ShowIntegers<int64_t>(elements, options.sign);
    case Scalar::kUint8:
      return ShowIntegers<uint8_t>(elements, options.sign);
    case Scalar::kUint16:
      return ShowIntegers<uint16_t>(elements, options.sign);
    case Scalar::kUint32:
      return ShowIntegers<uint32_t>(elements, options.sign);
    case Scalar::kUint64:
      return ShowIntegers<uint64_t>(elements, options.sign);
    case Scalar::kFloat16:
      return ShowFloats<Half>(elements, options);
    case Scalar::kFloat32:
      return ShowFloats<float>(elements, options);
    case Scalar::kFloat64:
      return ShowFloats<double>(elements, options);
    case Scalar::kComplex64:
      return ShowComplex<float>(elements, options);
    case Scalar::kComplex128:
      return ShowComplex<double>(elements, options);
    case Scalar::kBfloat16:
      return ShowBfloat16(elements);
    case Scalar::kBool:
    case Scalar::kByte:
    case Scalar::kThread:
    case Scalar::kDevice:
    case Scalar::kLane:
      break;
    }
  }
  Words words; // each by itself
  for (const std::byte *at : elements) {
    // As wide as "False".
    if (piece.type == Scalar::kBool && !piece.shape.empty() && Load<uint8_t>(at) != 0) words.text += ' ';
    FormatScalar(words.text, piece, at);
    words.end();
  }
  return words;
}

} // namespace effects
