#include "array.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "elements.h"

namespace effects {
namespace {

// The shown elements of an array: all, or those at its corners.
class Corners {
public:
  Corners(const Piece &piece, const PrintOptions &options) : shape_(piece.shape), edge_(options.edgeitems) {
    int64_t size = 1;
    for (const int64_t length : shape_) size *= length;
    is_empty_ = size == 0;
    is_summary_ = size > options.threshold;
  }

  bool is_empty() const { return is_empty_; }
  bool is_summary() const { return is_summary_; }

  // True if the middle of an axis is left out.
  bool cuts(size_t axis) const { return is_summary_ && 2 * edge_ < shape_[axis]; }

  // Calls f(i) for each shown index of an axis, and gap() for the rest.
  template <typename F, typename Gap>
  void along(size_t axis, F &&f, Gap &&gap) const {
    const int64_t length = shape_[axis];
    const int64_t head = cuts(axis) ? edge_ : length;
    for (int64_t i = 0; i < head; ++i) f(i);
    if (head == length) return;
    gap();
    for (int64_t i = length - edge_; i < length; ++i) f(i);
  }

  // The shown elements, in order.
  std::vector<const std::byte *> find(const std::byte *data, size_t element_size) const {
    std::vector<const std::byte *> found;
    find(found, data, element_size, 0);
    return found;
  }

  size_t rank() const { return shape_.size(); }

private:
  void find(std::vector<const std::byte *> &found, const std::byte *data, size_t element_size, size_t axis) const {
    if (axis == shape_.size()) {
      found.push_back(data);
      return;
    }
    size_t stride = element_size;
    for (size_t inner = axis + 1; inner < shape_.size(); ++inner) stride *= static_cast<size_t>(shape_[inner]);
    along(axis, [&](int64_t i) { find(found, data + static_cast<size_t>(i) * stride, element_size, axis + 1); }, [] {});
  }

  const std::vector<int64_t> &shape_;
  const int64_t edge_;
  bool is_empty_, is_summary_;
};

// Lays out words in rows, brackets and lines.
class Layout {
public:
  // `separator`: between words. `prefix`: the column at which the array begins.
  Layout(std::string &out, const Words &words, const Corners &corners, int64_t width, std::string_view separator,
         size_t prefix)
      : out_(out), words_(words), corners_(corners), width_(width), separator_(separator), prefix_(prefix) {}

  void append(size_t axis = 0) {
    out_ += '[';
    // Lines are aligned with the first word. Each bracket takes one character at either end of a line.
    const size_t indent = prefix_ + axis + 1;
    if (axis + 1 == corners_.rank())
      append_row(indent, width_ - static_cast<int64_t>(axis) - 1);
    else
      append_rows(axis, indent);
    out_ += ']';
  }

private:
  void append_rows(size_t axis, size_t indent) {
    bool is_first = true;
    const auto begin = [&] {
      if (!is_first) {
        out_ += separator_.substr(0, separator_.size() - 1); // without its final space
        out_.append(corners_.rank() - axis - 1, '\n');
        out_.append(indent, ' ');
      }
      is_first = false;
    };
    corners_.along(
        axis,
        [&](int64_t) {
          begin();
          append(axis + 1);
        },
        [&] {
          begin();
          out_ += "...";
        });
  }

  // A line holds as many words as fit, at least one.
  void append_row(size_t indent, int64_t width) {
    size_t line = indent; // the length of the line
    bool is_first = true;
    const auto add = [&](std::string_view word) {
      if (!is_first) {
        out_ += separator_;
        line += separator_.size();
      }
      is_first = false;
      if (static_cast<int64_t>(line + word.size()) > width && line > indent) {
        while (out_.back() == ' ') out_.pop_back();
        out_ += '\n';
        out_.append(indent, ' ');
        line = indent;
      }
      out_ += word;
      line += word.size();
    };
    corners_.along(corners_.rank() - 1, [&](int64_t) { add(words_[next_++]); }, [&] { add("..."); });
  }

  std::string &out_;
  const Words &words_;
  const Corners &corners_;
  const int64_t width_;
  const std::string_view separator_;
  const size_t prefix_;
  size_t next_ = 0; // the next word
};

// The shape, as in `repr`.
std::string Tuple(const std::vector<int64_t> &shape) {
  std::string text = "(";
  for (const int64_t length : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(length);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

void AppendNested(std::string &out, const Piece &piece, const std::byte *&at, size_t axis) {
  if (axis == piece.shape.size()) {
    FormatScalar(out, piece, at);
    at += SizeOf(piece.type);
    return;
  }
  out += '[';
  for (int64_t i = 0; i < piece.shape[axis]; ++i) {
    if (i != 0) out += ", ";
    AppendNested(out, piece, at, axis + 1);
  }
  out += ']';
}

} // namespace

void FormatArray(std::string &out, const Piece &piece, const std::byte *data, const PrintOptions &options) {
  const Corners corners(piece, options);
  if (corners.is_empty()) {
    out += "[]";
    return;
  }
  const Words words = Show(piece, corners.find(data, SizeOf(piece.type)), options);
  Layout(out, words, corners, options.linewidth, " ", 0).append();
}

void FormatRepr(std::string &out, const Piece &piece, const std::byte *data, const PrintOptions &options) {
  static constexpr std::string_view kPrefix = "array(";
  const Corners corners(piece, options);
  const size_t begin = out.size();
  out += kPrefix;
  if (corners.is_empty()) {
    out += "[]";
  } else {
    const Words words = Show(piece, corners.find(data, SizeOf(piece.type)), options);
    if (piece.shape.empty())
      out += words[0];
    else
      Layout(out, words, corners, options.linewidth - 1, ", ", kPrefix.size()).append();
  }
  std::string more; // the shape and dtype, if the elements do not show them
  if (corners.is_summary() || (corners.is_empty() && piece.shape.size() > 1)) more = "shape=" + Tuple(piece.shape);
  if (!piece.dtype.empty()) more += (more.empty() ? "dtype=" : ", dtype=") + piece.dtype;
  if (!more.empty()) {
    out += ',';
    const size_t line = out.size() - std::max(begin, out.rfind('\n', out.size()) + 1);
    if (static_cast<int64_t>(line + more.size() + 2) > options.linewidth) {
      out += '\n';
      out.append(kPrefix.size(), ' ');
    } else {
      out += ' ';
    }
    out += more;
  }
  out += ')';
}

void FormatNested(std::string &out, const Piece &piece, const std::byte *data) { AppendNested(out, piece, data, 0); }

} // namespace effects
