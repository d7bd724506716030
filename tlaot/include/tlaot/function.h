/* One executable.so: loading it, and calling it through the TVM FFI C ABI. */
#ifndef TLAOT_FUNCTION_H_
#define TLAOT_FUNCTION_H_

#include <dlfcn.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "error.h"
#include "json.h"

namespace tlaot {

/// DLPack's element type of a name: "float32", "bfloat16", "float8_e4m3fn".
inline DLDataType dtype(const std::string& name) {
  TVMFFIByteArray text{name.data(), name.size()};
  DLDataType out;
  if (TVMFFIDataTypeFromString(&text, &out) == 0) return out;
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (error) TVMFFIObjectDecRef(error);
  throw Error("CallError", name, "is no element type", "Write for instance float32, bfloat16, int8, float8_e4m3fn.");
}

/// DLPack's element type of a C++ arithmetic type.
template <class T>
DLDataType dtype_of() {
  static_assert(std::is_arithmetic_v<T>, "name the element type: tlaot::Tensor(pointer, tlaot::dtype(\"bfloat16\"), sizes)");
  const int code = std::is_same_v<T, bool> ? kDLBool : std::is_floating_point_v<T> ? kDLFloat : std::is_signed_v<T> ? kDLInt : kDLUInt;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * sizeof(T)), 1};
}

/// The CPU, and CUDA devices by the ordinals that CUDA_VISIBLE_DEVICES leaves.
inline constexpr DLDevice cpu() { return {kDLCPU, 0}; }
inline constexpr DLDevice cuda(int device_id) { return {kDLCUDA, device_id}; }

/// A description of memory that the caller owns: a DLTensor that keeps its sizes. Sizes and strides are in elements; without
/// strides it is compact and row-major. Memory behind a pointer to const is refused where the kernel writes.
class Tensor {
 public:
  template <class T>
  Tensor(T* data, std::vector<int64_t> shape, DLDevice device = cpu(), std::vector<int64_t> strides = {})
      : Tensor(data, dtype_of<std::remove_const_t<T>>(), std::move(shape), device, std::move(strides)) {}
  template <class T>
  Tensor(T* data, DLDataType type, std::vector<int64_t> shape, DLDevice device = cpu(), std::vector<int64_t> strides = {})
      : shape_(std::move(shape)), strides_(std::move(strides)), constant_(std::is_const_v<T>) {
    if (strides_.empty() && !shape_.empty()) {
      strides_.assign(shape_.size(), 1);
      for (size_t i = shape_.size() - 1; i > 0; i--) strides_[i - 1] = strides_[i] * (shape_[i] > 1 ? shape_[i] : 1);
    }
    if (strides_.size() != shape_.size())
      throw Error("CallError", "tensor", std::to_string(shape_.size()) + " sizes with " + std::to_string(strides_.size()) + " strides");
    tensor_ = DLTensor{const_cast<void*>(static_cast<const void*>(data)), device, static_cast<int32_t>(shape_.size()), type,
                       nullptr, nullptr, 0};
  }

  /// The description, which points into this object.
  DLTensor dl_tensor() const {
    DLTensor out = tensor_;
    out.shape = const_cast<int64_t*>(shape_.data());
    out.strides = const_cast<int64_t*>(strides_.data());
    return out;
  }
  bool constant() const { return constant_; }

 private:
  DLTensor tensor_;
  std::vector<int64_t> shape_, strides_;
  bool constant_;
};

namespace detail {

/// An argument on its way to the binary. `owned` is what `value` points to where the caller gave a Tensor.
struct Slot {
  DLTensor owned;
  bool constant = false;
};

inline TVMFFIAny any_of(int32_t type_index) {
  TVMFFIAny out{};
  out.type_index = type_index;
  return out;
}

inline TVMFFIAny pack(const Tensor& tensor, Slot* slot) {
  slot->owned = tensor.dl_tensor();
  slot->constant = tensor.constant();
  TVMFFIAny out = any_of(kTVMFFIDLTensorPtr);
  out.v_ptr = &slot->owned;
  return out;
}
inline TVMFFIAny pack(const DLTensor* tensor, Slot*) {
  TVMFFIAny out = any_of(kTVMFFIDLTensorPtr);
  out.v_ptr = const_cast<DLTensor*>(tensor);
  return out;
}
inline TVMFFIAny pack(const DLManagedTensor* tensor, Slot* slot) { return pack(&tensor->dl_tensor, slot); }
inline TVMFFIAny pack(const DLManagedTensorVersioned* tensor, Slot* slot) {
  slot->constant = tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
  return pack(&tensor->dl_tensor, slot);
}
inline TVMFFIAny pack(const TVMFFIAny& any, Slot*) { return any; }
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
TVMFFIAny pack(T number, Slot*) {
  TVMFFIAny out = any_of(std::is_same_v<T, bool> ? kTVMFFIBool : std::is_floating_point_v<T> ? kTVMFFIFloat : kTVMFFIInt);
  if constexpr (std::is_floating_point_v<T>) out.v_float64 = static_cast<double>(number);
  else out.v_int64 = static_cast<int64_t>(number);
  return out;
}

/// The tensor of an argument; null for a scalar.
inline const DLTensor* tensor_of(const TVMFFIAny& arg) {
  if (arg.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(arg.v_ptr);
  if (arg.type_index == kTVMFFITensor) return reinterpret_cast<const DLTensor*>(static_cast<const char*>(arg.v_ptr) + sizeof(TVMFFIObject));
  return nullptr;
}

/// Throws the error that an FFI function left behind.
[[noreturn]] inline void throw_raised() {
  TVMFFIObjectHandle object = nullptr;
  TVMFFIErrorMoveFromRaised(&object);
  if (!object) throw Error("RuntimeError", "the kernel failed without saying why");
  const auto* cell = reinterpret_cast<const TVMFFIErrorCell*>(static_cast<const char*>(object) + sizeof(TVMFFIObject));
  std::string kind(cell->kind.data, cell->kind.size), message(cell->message.data, cell->message.size);
  TVMFFIObjectDecRef(object);
  throw Error(kind, message);
}

using FfiCall = int (*)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);

/// What dlopen gave, by path. Binaries are never unloaded: their threads, and CUDA, may still be in them.
struct Library {
  void* handle;
  std::string sha256;
};
inline std::mutex& loading() {
  static std::mutex mutex;
  return mutex;
}
inline std::map<std::string, Library>& libraries() {
  static auto* map = new std::map<std::string, Library>;
  return *map;
}

/// A program that is itself a plug-in may have libtvm_ffi in a scope that executable.so's symbols do not reach.
inline void share_tvm_ffi() {
  Dl_info info{};
  void* symbol = dlsym(RTLD_DEFAULT, "TVMFFIObjectDecRef");
  if (symbol && dladdr(symbol, &info) && info.dli_fname) dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_GLOBAL | RTLD_LAZY);
}

/// Verifies a file, then loads it; `expected` is its SHA-256, empty where nothing says it.
inline void* load_library(const std::string& path, const std::string& expected) {
  std::lock_guard<std::mutex> lock(loading());
  auto found = libraries().find(path);
  if (found != libraries().end() && found->second.sha256 == expected) return found->second.handle;
  const std::string digest = sha256(read_file(path, "a packaged file"));
  if (!expected.empty() && digest != expected)
    throw Error("PackageError", path,
                "the file is not the one that was packaged: SHA-256 " + digest.substr(0, 12) + "..., expected " +
                    expected.substr(0, 12) + "...",
                std::string(kReinstall) + " If it was changed on purpose (strip, patchelf...), accept that with: tlaot seal PATH");
  // The dynamic linker knows a library by its path: for one that was replaced it silently gives the old code.
  if (found != libraries().end()) {
    if (found->second.sha256 == digest) return found->second.handle;
    throw Error("LoadError", path, "was replaced while this process has the former one loaded", "Start the process again.");
  }
  share_tvm_ffi();
  // A name without a slash would be looked for where libraries are.
  void* handle = dlopen((path.find('/') == std::string::npos ? "./" + path : path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw Error("LoadError", path, std::string("cannot be loaded (") + dlerror() + ")",
                "It was built for another system: install a wheel for this one. Symbols TVMFFI... come from libtvm_ffi.so.");
  libraries()[path] = {handle, digest};
  return handle;
}

inline FfiCall symbol_of(void* library, const char* name, const std::string& path) {
  auto call = reinterpret_cast<FfiCall>(dlsym(library, name));
  if (!call) throw Error("LoadError", path, std::string("has no symbol ") + name + ": it is no kernel of tlaot", "Build the package again.");
  return call;
}

}  // namespace detail

/// One packaged kernel for one workload and target, ready to be called; cheap to copy, and any number of threads may call it.
class Function {
 public:
  /// Loads an executable.so by path. What is behind it is checked where a variant.json lies beside it, as in a package's folders.
  ///
  /// Throws Error: "PackageError" where the file is missing or not the one that was packaged, "LoadError" where it cannot be
  /// loaded.
  explicit Function(const std::string& path) : Function(path, digest_beside(path)) {}

  /// The same with the SHA-256 that the file must have, as 64 hexadecimal digits.
  Function(const std::string& path, const std::string& sha256)
      : call_(detail::symbol_of(detail::load_library(path, sha256), "__tvm_ffi_tlaot_call", path)) {}

  /// Runs the kernel on all its parameters in order, outputs included: `Tensor`, `DLTensor*`, DLPack's managed tensors,
  /// numbers, or `TVMFFIAny`. A CUDA kernel is put on the stream of StreamScope.
  ///
  /// Throws Error with the kind and the message of the kernel's own checks: "TypeError", "ValueError", "RuntimeError".
  template <class... Args>
  void operator()(const Args&... args) const {
    detail::Slot slots[sizeof...(Args) + 1];
    size_t i = 0;
    const TVMFFIAny values[] = {detail::pack(args, &slots[i++])..., TVMFFIAny{}};
    call(values, static_cast<int32_t>(sizeof...(Args)));
  }

  void call(const TVMFFIAny* args, int32_t count) const {
    TVMFFIAny result = detail::any_of(kTVMFFINone);
    if (call_(nullptr, args, count, &result)) detail::throw_raised();
  }

 private:
  friend class Kernel;
  explicit Function(detail::FfiCall call) : call_(call) {}
  static std::string digest_beside(const std::string& path);

  detail::FfiCall call_;
};

// FORMAT_VERSION and BUCKETS_VERSION of tlaot/manifest.py.
inline constexpr int64_t kFormat = 2;
inline constexpr int64_t kBucketsFormat = 3;

inline std::string Function::digest_beside(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string entry = (slash == std::string::npos ? std::string("./") : path.substr(0, slash + 1)) + "variant.json";
  if (!std::ifstream(entry)) return "";
  try {
    return detail::read_sealed(entry, "the variant's entry", kFormat, kBucketsFormat)
        .at("files")
        .at(slash == std::string::npos ? path : path.substr(slash + 1))
        .at("sha256")
        .string();
  } catch (const std::out_of_range& error) {
    throw Error("PackageError", entry, std::string("the variant's entry lacks ") + error.what(), detail::kReinstall);
  }
}

/// While it lives, CUDA kernels that this thread calls for a device are put on a stream (a cudaStream_t or CUstream).
class StreamScope {
 public:
  StreamScope(int device_id, void* stream) : device_id_(device_id) {
    if (TVMFFIEnvSetStream(kDLCUDA, device_id, stream, &former_)) detail::throw_raised();
  }
  ~StreamScope() { TVMFFIEnvSetStream(kDLCUDA, device_id_, former_, nullptr); }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  int device_id_;
  void* former_ = nullptr;
};

}  // namespace tlaot

#endif
