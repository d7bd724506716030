/* The one exception of this API. */
#ifndef TLAOT_ERROR_H_
#define TLAOT_ERROR_H_

#include <stdexcept>
#include <string>

namespace tlaot {

/// What went wrong, in the words of tlaot's Python side: where and what, then the remedy on a line of its own.
///
/// kind() is "PackageError" (a file is missing, damaged or of another format), "LoadError" (this machine or process cannot
/// use it), "DispatchError" (no packaged variant fits), "CallError" (the arguments are malformed whatever was packaged), or
/// what the kernel's own checks raise: "TypeError", "ValueError", "RuntimeError".
class Error : public std::runtime_error {
 public:
  Error(std::string kind, const std::string& message) : std::runtime_error(message), kind_(std::move(kind)) {}
  Error(std::string kind, const std::string& where, const std::string& what, const std::string& remedy = "")
      : Error(std::move(kind), where + ": " + what + (remedy.empty() ? "" : "\n" + remedy)) {}

  const std::string& kind() const noexcept { return kind_; }

 private:
  std::string kind_;
};

}  // namespace tlaot

#endif
