/* One packaged variant as the manifest describes it, and whether an argument fits a parameter of it. */
#ifndef TLAOT_VARIANT_H_
#define TLAOT_VARIANT_H_

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "error.h"
#include "function.h"
#include "json.h"
#include "target.h"

namespace tlaot {

namespace detail {

/// A size or a stride: a number, or (symbol >= 0) the index of a symbolic size.
struct Extent {
  int64_t value;
  int symbol;
};

struct Param {
  std::string name, type;
  DLDataType dtype;
  bool scalar, written, strided;
  std::vector<Extent> shape, strides;
};

/// A range of one symbolic size; a bucket is one of each dynamic dimension.
struct Range {
  size_t symbol;
  int64_t low, high;
};

struct Variant {
  std::string target_name, workload, file, sha256, out_idx;
  Target target;
  Json factory;
  std::vector<Param> params;
  std::vector<std::string> symbols;  // names of symbolic sizes
  std::vector<std::vector<Range>> buckets;  // the sizes that it serves; none: all that it takes
  double latency;
  mutable std::atomic<FfiCall> call{nullptr};  // of the binary, once it is loaded

  FfiCall load() const {
    FfiCall loaded = call.load(std::memory_order_acquire);
    if (!loaded) call.store(loaded = symbol_of(load_library(file, sha256), "__tvm_ffi_tlaot_call", file), std::memory_order_release);
    return loaded;
  }
};

inline std::string spell(const std::vector<Extent>& sizes, const Variant& variant) {
  std::string out;
  for (const Extent& e : sizes) out += (out.empty() ? "" : ", ") + (e.symbol < 0 ? std::to_string(e.value) : variant.symbols[e.symbol]);
  return "(" + out + ")";
}
inline std::string spell(const int64_t* sizes, int32_t count) {
  std::string out;
  for (int32_t i = 0; i < count; i++) out += (i ? ", " : "") + std::to_string(sizes[i]);
  return "(" + out + ")";
}
inline std::string spell(DLDataType type) {
  TVMFFIAny text = any_of(kTVMFFINone);
  if (TVMFFIDataTypeToString(&type, &text)) throw_raised();
  if (text.type_index == kTVMFFISmallStr) return std::string(text.v_bytes, text.small_str_len);
  const auto* bytes = reinterpret_cast<const TVMFFIByteArray*>(static_cast<const char*>(text.v_ptr) + sizeof(TVMFFIObject));
  std::string out(bytes->data, bytes->size);
  TVMFFIObjectDecRef(text.v_ptr);
  return out;
}
inline std::string spell(DLDevice device) {
  if (device.device_type == kDLCPU) return "cpu";
  return (device.device_type == kDLCUDA ? "cuda:" : "device type " + std::to_string(device.device_type) + ":") +
         std::to_string(device.device_id);
}

/// A hash of all tensors' sizes: equal for a variant without symbolic sizes and for the calls that it may fit.
inline uint64_t mix(uint64_t key, uint64_t value) { return (key ^ value) * 0x9e3779b97f4a7c15u; }
inline uint64_t shape_key(const Variant& variant) {
  uint64_t key = 0;
  for (const Param& param : variant.params) {
    key = mix(key, ~uint64_t{param.shape.size()} << 32);
    for (const Extent& e : param.shape) key = mix(key, static_cast<uint64_t>(e.value));
  }
  return key;
}
inline uint64_t shape_key(const TVMFFIAny* args, int32_t count) {
  uint64_t key = 0;
  for (int32_t i = 0; i < count; i++) {
    const DLTensor* tensor = tensor_of(args[i]);
    const int32_t ndim = tensor ? tensor->ndim : 0;
    key = mix(key, ~static_cast<uint64_t>(ndim) << 32);
    for (int32_t d = 0; d < ndim; d++) key = mix(key, static_cast<uint64_t>(tensor->shape[d]));
  }
  return key;
}

/// Whether an argument fits a parameter; where it does not and `why` is given, in words.
inline bool fits(const Variant& variant, const Param& param, const TVMFFIAny& arg, std::vector<int64_t>* sizes, std::string* why) {
  const auto say = [&](const std::string& text) {
    if (why) *why = "(" + param.name + ") " + text;
    return false;
  };
  const auto same = [&](const Extent& wanted, int64_t got) {
    if (wanted.symbol < 0) return wanted.value == got;
    int64_t& bound = (*sizes)[wanted.symbol];
    if (bound == INT64_MIN) bound = got;
    return bound == got;
  };
  const DLTensor* tensor = tensor_of(arg);
  if (param.scalar) {
    const int kind = arg.type_index;
    if (tensor) return say("is a tensor, expected a scalar " + param.type);
    if (param.type == "bool" ? kind == kTVMFFIBool
        : param.dtype.code == kDLInt || param.dtype.code == kDLUInt ? kind == kTVMFFIInt || kind == kTVMFFIBool
                                                                    : kind == kTVMFFIFloat || kind == kTVMFFIInt)
      return true;
    return say("is a number of another kind, expected " + param.type);
  }
  if (!tensor) return say("is no tensor, expected " + param.type + spell(param.shape, variant));
  if (tensor->dtype.code != param.dtype.code || tensor->dtype.bits != param.dtype.bits || tensor->dtype.lanes != param.dtype.lanes)
    return say(why ? "has dtype " + spell(tensor->dtype) + ", expected " + param.type : "");
  bool fit = static_cast<size_t>(tensor->ndim) == param.shape.size(), empty = false;
  for (size_t i = 0; fit && i < param.shape.size(); i++) {
    fit = same(param.shape[i], tensor->shape[i]);
    empty = empty || tensor->shape[i] == 0;
  }
  if (!fit) return say(why ? "has shape " + spell(tensor->shape, tensor->ndim) + ", expected " + spell(param.shape, variant) : "");
  // The stride of a dimension of size one addresses nothing.
  for (size_t i = 0; param.strided && tensor->strides && !empty && i < param.shape.size(); i++)
    if (tensor->shape[i] != 1 && !same(param.strides[i], tensor->strides[i]))
      return say(why ? "has strides " + spell(tensor->strides, tensor->ndim) + ", expected " + spell(param.strides, variant) : "");
  return true;
}

/// Whether sizes are in a bucket of a variant. A size of zero of which every written tensor has a dimension leaves nothing to
/// compute: it is in the bucket of the size one.
inline bool serves(const Variant& variant, const std::vector<int64_t>& sizes) {
  const auto empty = [&](size_t symbol) {
    return sizes[symbol] == 0 && std::all_of(variant.params.begin(), variant.params.end(), [&](const Param& param) {
      return !param.written || std::any_of(param.shape.begin(), param.shape.end(),
                                           [&](const Extent& e) { return e.symbol == static_cast<int>(symbol); });
    });
  };
  return std::any_of(variant.buckets.begin(), variant.buckets.end(), [&](const std::vector<Range>& bucket) {
    return std::all_of(bucket.begin(), bucket.end(), [&](const Range& range) {
      const int64_t size = empty(range.symbol) ? 1 : sizes[range.symbol];
      return range.low <= size && size <= range.high;
    });
  });
}

inline std::vector<Range> read_bucket(const Json& entry, const std::vector<std::string>& symbols) {
  std::vector<Range> out;
  const Json& sizes = entry.at("sizes");
  for (size_t i = 0; i < sizes.names.size(); i++) {
    const auto found = std::find(symbols.begin(), symbols.end(), sizes.names[i]);
    const auto& ends = sizes.values[i].array();
    if (found == symbols.end() || ends.size() != 2) throw std::out_of_range("a bucket of a symbolic size");
    out.push_back({static_cast<size_t>(found - symbols.begin()), ends[0].number(), ends[1].is_null() ? INT64_MAX : ends[1].number()});
  }
  return out;
}

/// The extents of a list, with strings for symbolic sizes.
inline std::vector<Extent> read_extents(const Json& list, std::vector<std::string>* symbols) {
  std::vector<Extent> out;
  for (const Json& one : list.array()) {
    if (one.kind != Json::kString) {
      out.push_back({one.number(), -1});
      continue;
    }
    auto found = std::find(symbols->begin(), symbols->end(), one.text);
    out.push_back({0, static_cast<int>(found - symbols->begin())});
    if (found == symbols->end()) symbols->push_back(one.text);
  }
  return out;
}

inline Param read_param(const Json& entry, std::vector<std::string>* symbols) {
  Param out{};
  out.name = entry.at("name").string();
  out.type = entry.at("dtype").string();
  try {
    out.dtype = dtype(out.type);
  } catch (const Error&) {
    throw std::out_of_range("an element type that is known here, not " + out.type);
  }
  out.written = entry.at("written").text == "true";
  out.scalar = entry.at("shape").is_null();
  out.strided = !entry.at("strides").is_null();
  if (!out.scalar) out.shape = read_extents(entry.at("shape"), symbols);
  if (out.strided) out.strides = read_extents(entry.at("strides"), symbols);
  if (out.strided && out.strides.size() != out.shape.size()) throw std::out_of_range("a stride for each size");
  return out;
}

/// An entry of the manifest. Throws std::out_of_range where it lacks something.
inline std::shared_ptr<Variant> read_variant(const Json& entry, const std::string& root, const std::string& path) {
  auto out = std::make_shared<Variant>();
  out->target_name = entry.at("target").string();
  out->target = read_target(out->target_name, path);
  out->factory = entry.at("shape");
  for (size_t i = 0; i < out->factory.names.size(); i++)
    out->workload += (i ? ", " : "") + out->factory.names[i] + "=" + out->factory.values[i].text;
  out->workload = "{" + out->workload + "}";
  for (const Json& param : entry.at("params").array()) out->params.push_back(read_param(param, &out->symbols));
  if (const Json* buckets = entry.find("buckets"))
    for (const Json& bucket : buckets->array()) out->buckets.push_back(read_bucket(bucket, out->symbols));
  for (const Json& position : entry.at("out_idx").array()) out->out_idx += position.text + " ";
  const Json& latency = entry.at("latency");
  const Json* measured = latency.find("latency");
  out->latency = measured ? std::strtod(measured->text.c_str(), nullptr) : 0;
  out->sha256 = entry.at("files").at("executable.so").at("sha256").string();
  const Json* elsewhere = entry.at("stored").find("executable.so");
  const std::string place = elsewhere ? elsewhere->string() : entry.at("path").string() + "/executable.so";
  if (place.empty() || place[0] == '/' || ("/" + place + "/").find("/../") != std::string::npos)
    throw Error("PackageError", path, "names a file outside of the package: " + place, kReinstall);
  out->file = root + "/" + place;
  return out;
}

}  // namespace detail

}  // namespace tlaot

#endif
