/* Reads the JSON that tlaot itself writes: manifest.json and variant.json, with the digest that each carries of itself. */
#ifndef TLAOT_JSON_H_
#define TLAOT_JSON_H_

#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "sha256.h"

namespace tlaot::detail {

inline constexpr const char* kReinstall = "Reinstall the package; if you built it, build it again.";

/// A value. Numbers and literals keep their text; a string's text is decoded.
struct Json {
  enum Kind { kLiteral, kString, kArray, kObject } kind = kLiteral;
  std::string text;
  std::vector<std::string> names;  // of an object's values
  std::vector<Json> values;

  const Json* find(const std::string& name) const {
    for (size_t i = 0; kind == kObject && i < names.size(); i++)
      if (names[i] == name) return &values[i];
    return nullptr;
  }
  const Json& at(const std::string& name) const {
    if (const Json* found = find(name)) return *found;
    throw std::out_of_range(name);
  }
  bool is_null() const { return kind == kLiteral && text == "null"; }
  int64_t number() const {
    char* end = nullptr;
    errno = 0;
    long long value = std::strtoll(text.c_str(), &end, 10);
    if (kind != kLiteral || text.empty() || *end || errno) throw std::out_of_range("a whole number, not " + text);
    return value;
  }
  const std::string& string() const {
    if (kind != kString) throw std::out_of_range("a string");
    return text;
  }
  const std::vector<Json>& array() const {
    if (kind != kArray) throw std::out_of_range("a list");
    return values;
  }
};

/// A recursive descent over the text; throws std::out_of_range where it is not JSON.
class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : at_(text.data()), end_(text.data() + text.size()) {}

  Json read() {
    Json value = read_value(0);
    skip_space();
    if (at_ != end_) fail();
    return value;
  }

 private:
  [[noreturn]] static void fail() { throw std::out_of_range("valid JSON"); }

  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  char peek() {
    skip_space();
    if (at_ == end_) fail();
    return *at_;
  }
  void expect(char wanted) {
    if (peek() != wanted) fail();
    ++at_;
  }

  Json read_value(int depth) {
    if (depth > 100) fail();  // damaged: what tlaot writes is seven deep
    Json out;
    char first = peek();
    if (first == '"') {
      out.kind = Json::kString;
      out.text = read_string();
    } else if (first == '{' || first == '[') {
      out.kind = first == '{' ? Json::kObject : Json::kArray;
      char close = first == '{' ? '}' : ']';
      ++at_;
      for (bool more = peek() != close; more;) {
        if (first == '{') {
          peek();
          out.names.push_back(read_string());
          expect(':');
        }
        out.values.push_back(read_value(depth + 1));
        more = peek() == ',';
        if (more) ++at_;
      }
      expect(close);
    } else {
      while (at_ != end_ && *at_ && std::strchr("+-.0123456789aefilnrstuyINT", *at_)) out.text += *at_++;
      if (out.text.empty()) fail();
    }
    return out;
  }

  std::string read_string() {
    std::string out;
    expect('"');
    for (; at_ != end_ && *at_ != '"'; ++at_) {
      if (*at_ != '\\') {
        out += *at_;
        continue;
      }
      if (++at_ == end_) fail();
      static constexpr char kNames[] = "\"\\/bfnrt", kMeant[] = "\"\\/\b\f\n\r\t";
      const char* escape = std::strchr(kNames, *at_);
      if (*at_ == 'u') append_utf8(&out);
      else if (escape && *escape) out += kMeant[escape - kNames];
      else fail();
    }
    if (at_ == end_) fail();
    ++at_;
    return out;
  }

  unsigned read_unit() {
    unsigned unit = 0;
    for (int i = 0; i < 4; i++) {
      if (++at_ == end_) fail();
      if (!std::isxdigit(static_cast<unsigned char>(*at_))) fail();
      unit = unit * 16 + static_cast<unsigned>(*at_ <= '9' ? *at_ - '0' : (*at_ | 32) - 'a' + 10);
    }
    return unit;
  }

  void append_utf8(std::string* out) {
    unsigned code = read_unit();
    if (code >= 0xd800 && code < 0xdc00 && end_ - at_ > 2 && at_[1] == '\\' && at_[2] == 'u') {
      at_ += 2;
      code = 0x10000 + ((code - 0xd800) << 10) + (read_unit() - 0xdc00);
    }
    if (code < 0x80) {
      *out += static_cast<char>(code);
      return;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *out += static_cast<char>((0xff00 >> (more + 1) & 0xff) | code >> 6 * more);
    while (more-- > 0) *out += static_cast<char>(0x80 | (code >> 6 * more & 0x3f));
  }

  const char* at_;
  const char* end_;
};

/// A sealed object's text without its digest and the space between tokens: what the digest is of. Tokens stay as they are
/// written, so that no number has to be spelt again.
inline std::string body_of(const std::string& text, const std::string& digest) {
  std::string out;
  out.reserve(text.size());
  bool quoted = false;
  for (size_t i = 0; i < text.size(); i++) {
    char c = text[i];
    if (quoted && c == '\\' && i + 1 < text.size()) out += text[i++], c = text[i];
    else if (c == '"') quoted = !quoted;
    else if (!quoted && (c == ' ' || c == '\n' || c == '\r' || c == '\t')) continue;
    out += c;
  }
  const std::string own = "\"digest\":\"" + digest + "\"";
  size_t found = out.find(own);  // names are sorted, so there is none but the object's own with this value
  if (found == std::string::npos) return out;
  bool last = out[found + own.size()] != ',';
  return out.erase(last ? found - 1 : found, own.size() + 1);
}

inline std::string read_file(const std::string& path, const std::string& what) {
  std::ifstream file(path, std::ios::binary);
  std::string data;
  char block[1 << 16];
  while (file.read(block, sizeof block) || file.gcount() > 0) data.append(block, static_cast<size_t>(file.gcount()));
  if (!file.is_open() || file.bad())
    throw Error("PackageError", path, what + " cannot be read (" + std::strerror(errno) + ")", kReinstall);
  return data;
}

/// The object in a file that tlaot sealed with a digest, of one of two formats that follow each other.
inline Json read_sealed(const std::string& path, const std::string& what, int64_t format, int64_t newest) {
  const std::string text = read_file(path, what);
  Json body;
  int64_t found = 0;
  std::string digest;
  try {
    body = JsonReader(text).read();
    found = body.at("format").number();
    if (format <= found && found <= newest) digest = body.at("digest").string();
  } catch (const std::out_of_range& error) {
    throw Error("PackageError", path, what + " is damaged: expected " + error.what(), kReinstall);
  }
  if (found < format || found > newest)
    throw Error("PackageError", path,
                what + " has format " + std::to_string(found) + ", this tlaot.h reads formats " + std::to_string(format) + " and " + std::to_string(newest),
                found > newest ? "Compile the program with the headers of a newer tlaot." : "Build the package again.");
  if (sha256(body_of(text, digest)) != digest)
    throw Error("PackageError", path, what + " does not match its own digest: it was changed or damaged", kReinstall);
  return body;
}

}  // namespace tlaot::detail

#endif
