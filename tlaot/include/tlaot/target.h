/* Which targets' code runs on this machine's devices, and which of several is the best: the rules of tlaot/target.py. */
#ifndef TLAOT_TARGET_H_
#define TLAOT_TARGET_H_

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "error.h"

namespace tlaot::detail {

struct Capability {
  int major = 0, minor = 0;
  bool operator==(Capability other) const { return major == other.major && minor == other.minor; }
  bool operator<(Capability other) const { return major != other.major ? major < other.major : minor < other.minor; }
};

/// "cuda:sm_90a", "cuda:compute_80" (PTX), "llvm:x86-64-v3", "c:x86-64-v3".
struct Target {
  bool cuda = false, ptx = false;
  int cpu_level = 0;  // of the x86-64 psABI, 1 to 4
  Capability own;
  char suffix = ' ';  // 'a': this architecture only, 'f': its family

  bool runs_on(Capability device) const {
    if (device == own) return true;
    if (suffix == 'a') return false;
    if (ptx && suffix == ' ') return own < device;
    if (device.major != own.major || device.minor < own.minor) return false;
    const Capability old_thor{10, 1};
    if (suffix == 'f') return !(own == old_thor) && !(device == old_thor);
    return !is_tegra(own) && !is_tegra(device);
  }

  /// Larger is better, among targets that run on the device.
  std::array<int, 5> preference(Capability device) const {
    if (!cuda) return {cpu_level};
    int rank = suffix == 'a' ? 2 : suffix == 'f' ? 1 : 0;
    int fit = own == device ? 2 : rank ? 1 : 0;
    return {!ptx, fit, own.major, own.minor, rank};
  }

 private:
  static bool is_tegra(Capability it) {
    for (Capability one : {Capability{5, 3}, {6, 2}, {7, 2}, {8, 7}, {8, 8}, {10, 1}, {11, 0}})
      if (it == one) return true;
    return false;
  }
};

inline const char* const kCpuLevels[] = {"none", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};

inline Target read_target(const std::string& text, const std::string& where) {
  Target target;
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon), arch = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (kind == "llvm" || kind == "c") {
    for (int level = 1; level <= 4; level++)
      if (arch == kCpuLevels[level]) target.cpu_level = level;
  }
  int number = 0, used = 0;
  target.cuda = kind == "cuda";
  target.ptx = arch.rfind("compute_", 0) == 0;
  if (target.cuda && std::sscanf(arch.c_str(), target.ptx ? "compute_%d%n" : "sm_%d%n", &number, &used) == 1) {
    target.own = {number / 10, number % 10};
    if (arch.size() == size_t(used) + 1) target.suffix = arch.back();
  }
  if (target.cuda ? number < 10 : !target.cpu_level)
    throw Error("PackageError", where, "this tlaot.h does not know the target " + text,
                "Compile the program with the headers of a newer tlaot.");
  return target;
}

/// What the CUDA driver says of a device; asked anew each time, by who keeps the answer.
inline Capability cuda_capability(int device_id) {
  const std::string where = "cuda:" + std::to_string(device_id);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) throw Error("LoadError", where, "the CUDA driver cannot be loaded", "Install the NVIDIA driver.");
  auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  auto ask = reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  Capability found;
  int device = 0;
  int status = !init || !get || !ask ? -1 : init(0);
  if (!status) status = get(&device, device_id);
  if (!status) status = ask(&found.major, 75, device);  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  if (!status) status = ask(&found.minor, 76, device);
  if (status)
    throw Error("LoadError", where, "the CUDA driver answers error " + std::to_string(status),
                "Check nvidia-smi and CUDA_VISIBLE_DEVICES.");
  return found;
}

/// Whether PTX may run, for which the driver's compiler is needed.
inline bool ptx_allowed() {
  const char* text = std::getenv("TLAOT_PTX");
  return !text || std::string(text) != "0";
}

}  // namespace tlaot::detail

#endif
