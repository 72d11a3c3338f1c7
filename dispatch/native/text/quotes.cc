#include "quotes.h"

#include <cstdint>
#include <string_view>

namespace effects {
namespace {

void AppendUnit(std::string &out, uint32_t unit) {
  static constexpr char kDigits[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[unit >> shift & 15];
}

// A non-ASCII character, by its code point.
void AppendEscaped(std::string &out, uint32_t character) {
  if (character < 0x10000) return AppendUnit(out, character);
  AppendUnit(out, 0xD800 + ((character - 0x10000) >> 10));
  AppendUnit(out, 0xDC00 + ((character - 0x10000) & 0x3FF));
}

void AppendAscii(std::string &out, char character) {
  switch (character) {
  case '"':
    out += "\\\"";
    return;
  case '\\':
    out += "\\\\";
    return;
  case '\n':
    out += "\\n";
    return;
  case '\r':
    out += "\\r";
    return;
  case '\t':
    out += "\\t";
    return;
  case '\b':
    out += "\\b";
    return;
  case '\f':
    out += "\\f";
    return;
  default:
    if (character < 0x20 || character == 0x7F)
      AppendUnit(out, static_cast<uint32_t>(character));
    else
      out += character;
  }
}

} // namespace

void QuoteString(std::string &out, size_t begin) {
  const std::string text = out.substr(begin);
  out.resize(begin);
  out += '"';
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) {
      AppendAscii(out, text[at]);
      continue;
    }
    const int more = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : 1; // continuation bytes
    uint32_t character = byte & (0x3F >> more);
    for (int i = 0; i < more && at + 1 < text.size(); ++i)
      character = character << 6 | (static_cast<unsigned char>(text[++at]) & 0x3F);
    AppendEscaped(out, character);
  }
  out += '"';
}

} // namespace effects
