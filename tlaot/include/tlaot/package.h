/* A package's kernels, by name; each call runs the variant that was packaged for its shapes, dtypes and device.
 *
 * The rules of choice are those of tlaot's Python side (runtime/dispatch.py, choose.py). */
#ifndef TLAOT_PACKAGE_H_
#define TLAOT_PACKAGE_H_

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "error.h"
#include "function.h"
#include "json.h"
#include "target.h"
#include "variant.h"

namespace tlaot {

/// Arguments of a kernel's factory that tell workloads with the same tensors apart: {{"causal", true}, {"dtype", "float16"}}.
class FactoryValue {
 public:
  FactoryValue(bool value) : text_(value ? "true" : "false") {}
  FactoryValue(const char* value) : text_(value), quoted_(true) {}
  FactoryValue(const std::string& value) : text_(value), quoted_(true) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  FactoryValue(T value) : number_(true), value_(static_cast<double>(value)) {}

  bool is(const detail::Json& found) const {
    if (number_) {
      char* end = nullptr;
      double value = std::strtod(found.text.c_str(), &end);
      return found.kind == detail::Json::kLiteral && end != found.text.c_str() && !*end && value == value_;
    }
    return found.kind == (quoted_ ? detail::Json::kString : detail::Json::kLiteral) && found.text == text_;
  }

 private:
  std::string text_;
  bool quoted_ = false, number_ = false;
  double value_ = 0;
};
using FactoryArgs = std::map<std::string, FactoryValue>;

/// All packaged variants of one kernel. Cheap to copy; any number of threads may call it.
class Kernel {
 public:
  const std::string& name() const { return where_; }

  /// Runs the variant that fits: all the kernel's parameters in order, outputs included, as Function takes them.
  ///
  /// Throws Error: "CallError" where the arguments are malformed or leave a choice, "DispatchError" where no variant fits, with
  /// what each has against them; "PackageError" and "LoadError" at a variant's first call; and what the kernel's checks raise.
  template <class... Args>
  void operator()(const Args&... args) const {
    detail::Slot slots[sizeof...(Args) + 1];
    size_t i = 0;
    const TVMFFIAny values[] = {detail::pack(args, &slots[i++])..., TVMFFIAny{}};
    const auto count = static_cast<int32_t>(sizeof...(Args));
    const detail::Variant& chosen = pick(values, slots, count);
    function_of(chosen).call(values, count);
  }

  /// The variant that a call with these arguments runs, loaded: for loops over the same shapes, which need no choice, and ahead
  /// of the first call.
  template <class... Args>
  Function select(const Args&... args) const {
    detail::Slot slots[sizeof...(Args) + 1];
    size_t i = 0;
    const TVMFFIAny values[] = {detail::pack(args, &slots[i++])..., TVMFFIAny{}};
    return function_of(pick(values, slots, static_cast<int32_t>(sizeof...(Args))));
  }

  /// The same kernel with only those variants that were made for these factory arguments.
  Kernel bind(const FactoryArgs& factory) const {
    Variants bound;
    for (const auto& [name, value] : factory) {
      bool known = false;
      for (const auto& one : table_->variants) known = known || one->factory.find(name);
      if (!known) throw Error("CallError", where_, "unknown factory argument '" + name + "'");
    }
    for (const auto& one : table_->variants) {
      bool fit = true;
      for (const auto& [name, value] : factory) {
        const detail::Json* found = one->factory.find(name);
        fit = fit && found && value.is(*found);
      }
      if (fit) bound.push_back(one);
    }
    if (bound.empty()) throw Error("DispatchError", where_, "no packaged variant has these factory arguments");
    return Kernel(where_, std::move(bound));
  }

 private:
  friend class Package;
  using Variants = std::vector<std::shared_ptr<const detail::Variant>>;

  /// Never changed once it is made: threads share it without a lock.
  struct Table {
    explicit Table(Variants all) : variants(std::move(all)) {
      for (const auto& one : variants) {
        if (one->symbols.empty()) by_shape[detail::shape_key(*one)].push_back(one.get());
        else symbolic.push_back(one.get());
      }
    }
    Variants variants;
    std::unordered_map<uint64_t, std::vector<const detail::Variant*>> by_shape;
    std::vector<const detail::Variant*> symbolic;
  };

  Kernel(std::string where, Variants variants) : where_(std::move(where)), table_(std::make_shared<const Table>(std::move(variants))) {}

  struct Here {
    DLDevice device{};
    detail::Capability capability;
    int cpu_level = 0;  // 0: not asked yet
  };

  static Function function_of(const detail::Variant& variant) {
    return Function(variant.load());
  }

  Here find_place(const TVMFFIAny* args, int32_t count) const {
    Here here;
    int32_t first = -1;
    for (int32_t i = 0; i < count; i++) {
      const DLTensor* tensor = detail::tensor_of(args[i]);
      if (!tensor) continue;
      if (first < 0) here.device = tensor->device, first = i;
      if (tensor->device.device_type != here.device.device_type || tensor->device.device_id != here.device.device_id)
        throw Error("CallError", where_, "argument " + std::to_string(i) + " is on " + detail::spell(tensor->device) + ", argument " +
                                             std::to_string(first) + " on " + detail::spell(here.device), "Move all tensors to one device.");
    }
    if (first < 0) throw Error("CallError", where_, "no argument is a tensor, so the device is unknown", "Pass a tensor.");
    if (here.device.device_type == kDLCUDA && has_cuda()) here.capability = capability_of(here.device.device_id);
    return here;
  }

  bool has_cuda() const {
    return std::any_of(table_->variants.begin(), table_->variants.end(), [](const auto& one) { return one->target.cuda; });
  }

  static detail::Capability capability_of(int device_id) {
    // Asked once a device; devices beyond the table are asked at each call.
    static std::atomic<int> known[64];
    const bool kept = device_id >= 0 && device_id < 64;
    if (int value = kept ? known[device_id].load(std::memory_order_relaxed) : 0) return {value / 100, value % 100};
    const detail::Capability found = detail::cuda_capability(device_id);
    if (kept) known[device_id].store(found.major * 100 + found.minor, std::memory_order_relaxed);
    return found;
  }

  /// Why a variant does not run the call: nothing where it does.
  bool accepts(const detail::Variant& variant, const TVMFFIAny* args, int32_t count, const Here& here, std::string* why) const {
    const auto say = [&](const char* text, const std::string& more = "") {
      if (why) *why = text + more;
      return false;
    };
    const bool cuda = here.device.device_type == kDLCUDA;
    if (variant.target.cuda != cuda || (!cuda && here.device.device_type != kDLCPU))
      return say(variant.target.cuda ? "is for CUDA" : "is for the CPU");
    if (cuda && !variant.target.runs_on(here.capability))
      return say("does not run on compute capability ", std::to_string(here.capability.major) + "." + std::to_string(here.capability.minor));
    if (variant.target.ptx && !detail::ptx_allowed()) return say("is PTX, which TLAOT_PTX=0 forbids");
    if (!cuda && here.cpu_level && variant.target.cpu_level > here.cpu_level)
      return say("needs a processor of a higher level, this one has ", detail::kCpuLevels[here.cpu_level]);
    if (static_cast<size_t>(count) != variant.params.size())
      return say("takes ", std::to_string(variant.params.size()) + " arguments, outputs included");
    std::vector<int64_t> sizes(variant.symbols.size(), INT64_MIN);
    for (int32_t i = 0; i < count; i++) {
      if (detail::fits(variant, variant.params[i], args[i], &sizes, why)) continue;
      if (why) *why = "argument " + std::to_string(i) + " " + *why;
      return false;
    }
    if (!variant.buckets.empty() && !detail::serves(variant, sizes)) return say("is not for these sizes of its dynamic dimensions");
    return true;
  }

  const detail::Variant& pick(const TVMFFIAny* args, const detail::Slot* slots, int32_t count) const {
    Here here = find_place(args, count);
    std::vector<const detail::Variant*> fitting;
    const auto look_at = [&](const std::vector<const detail::Variant*>& some) {
      for (const auto* one : some)
        if (accepts(*one, args, count, here, nullptr)) fitting.push_back(one);
    };
    const auto exact = table_->by_shape.find(detail::shape_key(args, count));
    if (exact != table_->by_shape.end()) look_at(exact->second);
    look_at(table_->symbolic);
    const auto keep = [&fitting](auto&& wanted) {
      fitting.erase(std::remove_if(fitting.begin(), fitting.end(), [&](const auto* one) { return !wanted(*one); }), fitting.end());
    };
    if (!fitting.empty() && here.device.device_type == kDLCPU) {
      here.cpu_level = cpu_level_of(fitting);
      keep([&](const detail::Variant& one) { return one.target.cpu_level <= here.cpu_level; });
    }
    if (fitting.empty()) throw refuse_all(args, count, here);
    if (fitting.size() > 1) {
      // One made for exactly these sizes goes before one with symbolic sizes.
      size_t fewest = fitting[0]->symbols.size();
      for (const auto* one : fitting) fewest = std::min(fewest, one->symbols.size());
      keep([&](const detail::Variant& one) { return one.symbols.size() == fewest; });
      fitting = {best_of_workloads(fitting, here)};
    }
    const detail::Variant& chosen = *fitting[0];
    for (int32_t i = 0; i < count; i++)
      if (slots[i].constant && chosen.params[i].written)
        throw Error("CallError", where_, "argument " + std::to_string(i) + " (" + chosen.params[i].name +
                                             ") is read-only, and the kernel writes it", "Pass writable memory.");
    return chosen;
  }

  /// The best for the device, then the fastest.
  static bool is_worse(const detail::Variant& left, const detail::Variant& right, const Here& here) {
    const auto merit = [&here](const detail::Variant& one) {
      return std::make_tuple(one.target.preference(here.capability), -one.latency, std::cref(one.target_name).get());
    };
    return merit(left) < merit(right);
  }

  const detail::Variant* best_of_workloads(const std::vector<const detail::Variant*>& fitting, const Here& here) const {
    std::map<std::string, const detail::Variant*> best;
    for (const auto* one : fitting) {
      const detail::Variant*& kept = best[one->workload];
      if (!kept || is_worse(*kept, *one, here)) kept = one;
    }
    const detail::Variant* chosen = best.begin()->second;
    for (const auto& [workload, one] : best) {
      // Workloads that share a binary leave no choice: what is run is the same.
      if (one->sha256 != chosen->sha256 || one->target_name != chosen->target_name || one->out_idx != chosen->out_idx)
        throw Error("CallError", where_, "several packaged workloads take these tensors: " + best.begin()->first + " and " + workload,
                    "Say which: kernel.bind({{\"name\", value}}).");
      if (is_worse(*chosen, *one, here)) chosen = one;
    }
    return chosen;
  }

  /// This processor's instruction level. The binaries know how to ask; the one that needs the least can be loaded anywhere.
  static int cpu_level_of(const std::vector<const detail::Variant*>& fitting) {
    static std::atomic<int> known{0};
    if (int level = known.load(std::memory_order_relaxed)) return level;
    const detail::Variant* least = *std::min_element(
        fitting.begin(), fitting.end(), [](const auto* a, const auto* b) { return a->target.cpu_level < b->target.cpu_level; });
    TVMFFIAny level = detail::any_of(kTVMFFINone);
    void* library = detail::load_library(least->file, least->sha256);
    if (detail::symbol_of(library, "__tvm_ffi_tlaot_cpu_level", least->file)(nullptr, nullptr, 0, &level)) detail::throw_raised();
    if (level.v_int64 < 1 || level.v_int64 > 4)
      throw Error("LoadError", least->file, "names CPU level " + std::to_string(level.v_int64), "Build the package again.");
    known.store(static_cast<int>(level.v_int64), std::memory_order_relaxed);
    return static_cast<int>(level.v_int64);
  }

  Error refuse_all(const TVMFFIAny* args, int32_t count, const Here& here) const {
    std::string call, lines;
    const bool elsewhere = std::none_of(table_->variants.begin(), table_->variants.end(), [&](const auto& one) {
      return one->target.cuda == (here.device.device_type == kDLCUDA);
    });
    for (int32_t i = 0; i < count; i++) {
      const DLTensor* tensor = detail::tensor_of(args[i]);
      call += (i ? ", " : "") + (tensor ? detail::spell(tensor->dtype) + detail::spell(tensor->shape, tensor->ndim) : "a number");
    }
    for (const auto& one : table_->variants) {
      std::string why;
      accepts(*one, args, count, here, &why);
      lines += "\n  " + one->target_name + " " + one->workload + ": " + why;
    }
    return Error("DispatchError", where_, "no packaged variant fits (" + call + ") on " + detail::spell(here.device) +
                                              (lines.empty() ? "\n  (none is packaged)" : lines),
                 elsewhere ? "Nothing is packaged for this device: move the tensors, or add a target to tltune.toml and build again."
                           : "Add the shape to tltune.toml and build the package again, or change the call.");
  }

  std::string where_;
  std::shared_ptr<const Table> table_;
};

/// The kernels of one package, read from its manifest; a binary is loaded at its first call.
class Package {
 public:
  /// Opens the folder of an installed package (`.../site-packages/my_package`), or one with a manifest.json; with several
  /// folders, such as those of a package's companions, their kernels are one set.
  ///
  /// Throws Error, "PackageError": a manifest is missing, damaged or of another format; two folders have the same variant.
  explicit Package(const std::string& folder) : Package(std::vector<std::string>{folder}) {}
  explicit Package(const std::vector<std::string>& folders) {
    std::map<std::string, Kernel::Variants> found;
    for (const std::string& folder : folders) add(folder, &found);
    for (auto& [name, variants] : found) kernels_.emplace(name, Kernel(name_ + "." + name, std::move(variants)));
  }

  /// A kernel by name. Throws Error, "PackageError", where there is none.
  Kernel kernel(const std::string& name) const {
    const auto found = kernels_.find(name);
    if (found != kernels_.end()) return found->second;
    std::string known;
    for (const auto& [other, _] : kernels_) known += (known.empty() ? "" : ", ") + other;
    throw Error("PackageError", name_, "has no kernel " + name + "; it has " + (known.empty() ? "none" : known));
  }

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, _] : kernels_) out.push_back(name);
    return out;
  }

 private:
  void add(const std::string& folder, std::map<std::string, Kernel::Variants>* found) {
    const std::string root = std::ifstream(folder + "/manifest.json") ? folder : folder + "/_tlaot";
    const std::string path = root + "/manifest.json";
    const detail::Json manifest = detail::read_sealed(path, "the kernel manifest", kFormat, kBucketsFormat);
    try {
      if (name_.empty()) name_ = manifest.at("package").string();
      const detail::Json& kernels = manifest.at("kernels");
      for (size_t i = 0; i < kernels.names.size(); i++)
        for (const detail::Json& entry : kernels.values[i].array()) {
          auto variant = detail::read_variant(entry, root, path);
          const auto claim = std::make_tuple(kernels.names[i], variant->target_name, variant->workload);
          // Variants of one dynamic workload share its sizes, in one place.
          const auto [former, fresh] = claims_.emplace(claim, path);
          if (!fresh && (variant->buckets.empty() || former->second != path))
            throw Error("PackageError", path, kernels.names[i] + " for " + variant->target_name + " " + variant->workload +
                                                  " is also in " + former->second, "Remove one of the two.");
          (*found)[kernels.names[i]].push_back(std::move(variant));
        }
    } catch (const std::out_of_range& error) {
      throw Error("PackageError", path, std::string("the kernel manifest lacks ") + error.what(), detail::kReinstall);
    }
  }

  std::map<std::tuple<std::string, std::string, std::string>, std::string> claims_;
  std::string name_;
  std::map<std::string, Kernel> kernels_;
};

}  // namespace tlaot

#endif
