/* The CUDA device module: what TileLang's and TVM's generated host code calls by name.
 *
 * libcuda is opened at the first call that has work. The image, a cubin or PTX, is loaded once a process (a CUlibrary belongs
 * to no context), attributes are set once a device and function, and nothing here synchronises, so that launches can be
 * captured. */
#include "tlaot.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tvm/ffi/extra/c_env_api.h>

#include "cuda_api.h"

TLAOT_OLD_GLIBC(dlopen);
TLAOT_OLD_GLIBC(dlsym);
TLAOT_OLD_GLIBC(dlerror);

#define MAX_RANK 5
#define PORTABLE_CLUSTER 8 /* blocks that every device with clusters takes; more needs an opt-in */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all that is set once */

static struct {
#define DECLARE(name, symbol, parameters) CUresult(*name) parameters;
  TLAOT_CUDA_FUNCTIONS(DECLARE)
#undef DECLARE
  CUresult (*FuncLoad)(CUfunction function); /* CUDA 12.4; NULL before */
  bool ready; /* read without the lock, written last */
  pid_t process;
} cu;

static CUcontext primary[TLAOT_MAX_DEVICES];
static CUlibrary library;

/* What the driver says about PTX that it cannot compile. It keeps the address: it compiles for each context, and not before
 * a function is needed there. */
static char compiler_log[2048];

/* What one call of the entry has set for the launches in it. */
static _Thread_local struct {
  int32_t device;
  bool has_window;
  CUaccessPolicyWindow window;
} here;

/* Stands in a tensor map of a tensor that has a dimension of size 0: the driver refuses to encode one. */
static const char empty_map[16] = "tlaot: no items";

static bool is_ptx(void) { return tlaot_image[0] != 0x7f; /* else the first byte of an ELF file */ }

/* Errors that say: not this code, on this device or with this driver. */
static bool is_of_image(CUresult error) {
  return error == CUDA_ERROR_NO_BINARY_FOR_GPU || error == CUDA_ERROR_INVALID_IMAGE ||
         error == CUDA_ERROR_INVALID_SOURCE || error == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
         error == CUDA_ERROR_INVALID_PTX || error == CUDA_ERROR_JIT_COMPILER_NOT_FOUND ||
         error == CUDA_ERROR_JIT_COMPILATION_DISABLED;
}

static int image_failed(CUresult error, const char *what, const char *name, const char *text) {
  char device[128] = "this device", remedy[96], log[640] = "";
  int major = 0, minor = 0, version = 0;
  CUdevice handle;
  if (cu.DeviceGet(&handle, here.device) == CUDA_SUCCESS) {
    cu.DeviceGetName(device, sizeof device, handle);
    cu.DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle);
    cu.DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle);
  }
  cu.DriverGetVersion(&version);
  snprintf(remedy, sizeof remedy, "Build the package with the target cuda:sm_%d%d, or update the NVIDIA driver.", major, minor);
  if (error == CUDA_ERROR_JIT_COMPILATION_DISABLED)
    snprintf(remedy, sizeof remedy, "Unset CUDA_DISABLE_PTX_JIT, or build the package with the target cuda:sm_%d%d.", major, minor);
  size_t length = strlen(compiler_log);
  while (length && strchr(" \n", compiler_log[length - 1])) length--;
  if (length) snprintf(log, sizeof log, "Its compiler says: %.*s\n", (int)(length < 600 ? length : 600), compiler_log);
  return tlaot_fail("RuntimeError",
                    "%s: %s failed: %s (%s)\nThis variant is for %s%s; cuda:%d (%.100s) has compute capability %d.%d, and its "
                    "driver offers CUDA %d.%d.\n%s%s",
                    tlaot_the_plan.kernel, what, name, text, tlaot_the_plan.target,
                    is_ptx() ? ", PTX that the driver compiles for the device" : "", (int)here.device, device, major, minor,
                    version / 1000, version % 1000 / 10, log, remedy);
}

static int driver_failed(CUresult error, const char *what) {
  const char *name = NULL, *text = NULL, *kernel = tlaot_the_plan.kernel;
  cu.GetErrorName(error, &name);
  cu.GetErrorString(error, &text);
  if (!name) name = "unknown CUDA error";
  if (!text) text = "no description";
  if (cu.process != getpid())
    return tlaot_fail("RuntimeError",
                      "%s: %s failed: %s (%s)\nCUDA was used before this process was forked; start it with the spawn "
                      "method, or use CUDA only after the fork.",
                      kernel, what, name, text);
  if (is_of_image(error)) return image_failed(error, what, name, text);
  return tlaot_fail("RuntimeError", "%s: %s failed: %s (%s)", kernel, what, name, text);
}

static int setup_failed(CUresult error, const char *what) {
  const char *name = NULL, *text = NULL;
  if (error >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && error <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {
    cu.GetErrorName(error, &name);
    return tlaot_fail("RuntimeError", "%s: %s failed while a CUDA graph was captured: %s\nLoad the kernel before the capture: "
                      "kernels.preload(), or a call.", tlaot_the_plan.kernel, what, name ? name : "unknown CUDA error");
  }
  if (!is_ptx() || !compiler_log[0] || is_of_image(error) || cu.process != getpid()) return driver_failed(error, what);
  cu.GetErrorName(error, &name);
  cu.GetErrorString(error, &text);
  return image_failed(error, what, name ? name : "unknown CUDA error", text ? text : "no description");
}

/* A thread that held the lock when another one forked does not exist in the child: nobody would ever give it back there. */
static int take_lock(void) {
  if (cu.process && cu.process != getpid()) return driver_failed(CUDA_ERROR_NOT_INITIALIZED, "calling the CUDA driver");
  pthread_mutex_lock(&lock);
  return 0;
}

static int open_driver(void) {
  void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return tlaot_fail("RuntimeError",
                      "%s: libcuda.so.1 cannot be loaded, so there is no CUDA here (%s)\nInstall the NVIDIA driver, or in a "
                      "container give it the GPU (docker run --gpus all).",
                      tlaot_the_plan.kernel, dlerror());
#define FIND(name, symbol, parameters)                                                                            \
  if (!(cu.name = (CUresult(*) parameters)dlsym(handle, symbol)))                                                 \
    return tlaot_fail("RuntimeError", "%s: the NVIDIA driver is too old: it has no %s\nInstall driver 525 (CUDA 12.0) " \
                      "or later.", tlaot_the_plan.kernel, symbol);
  TLAOT_CUDA_FUNCTIONS(FIND)
#undef FIND
  cu.FuncLoad = (CUresult(*)(CUfunction))dlsym(handle, "cuFuncLoad");
  cu.process = getpid();
  CUresult error = cu.Init(0);
  if (error) {
    driver_failed(error, "cuInit");
    cu.process = 0; /* another process may have more luck */
    return -1;
  }
  __atomic_store_n(&cu.ready, true, __ATOMIC_RELEASE);
  return 0;
}

static int require_driver(void) {
  if (__atomic_load_n(&cu.ready, __ATOMIC_ACQUIRE)) return 0;
  if (take_lock()) return -1;
  int status = cu.ready ? 0 : open_driver();
  pthread_mutex_unlock(&lock);
  return status;
}

static int retain_primary(int32_t device) {
  CUdevice handle;
  CUcontext context = NULL;
  CUresult error = cu.DeviceGet(&handle, device);
  if (error) return driver_failed(error, "cuDeviceGet");
  if (take_lock()) return -1;
  if (!primary[device]) { /* kept until the process ends, as the CUDA runtime does */
    error = cu.DevicePrimaryCtxRetain(&context, handle);
    if (!error) __atomic_store_n(&primary[device], context, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return error ? driver_failed(error, "cuDevicePrimaryCtxRetain") : 0;
}

int tlaot_device_enter(int32_t device, bool *pushed) {
  CUcontext current = NULL;
  *pushed = false;
  if (device < 0) device = 0; /* a kernel without tensors */
  if (device >= TLAOT_MAX_DEVICES)
    return tlaot_fail("ValueError", "%s: device number too large, expected at most %d, got %d", tlaot_the_plan.kernel,
                      TLAOT_MAX_DEVICES - 1, (int)device);
  here.device = device;
  here.has_window = false;
  if (require_driver()) return -1;
  CUcontext context = __atomic_load_n(&primary[device], __ATOMIC_ACQUIRE);
  if (!context) {
    if (retain_primary(device)) return -1;
    context = __atomic_load_n(&primary[device], __ATOMIC_ACQUIRE);
  }
  CUresult error = cu.CtxGetCurrent(&current);
  if (error) return driver_failed(error, "cuCtxGetCurrent");
  if (current == context) return 0;
  error = cu.CtxPushCurrent(context);
  if (error) return driver_failed(error, "cuCtxPushCurrent");
  *pushed = true;
  return 0;
}

void tlaot_device_leave(bool pushed) {
  CUcontext popped;
  if (pushed) cu.CtxPopCurrent(&popped);
}

/* The first call may come under stream capture; loading code and setting attributes is then allowed in relaxed mode only. */
static int begin_setup(int *mode) {
  if (take_lock()) return -1;
  *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (cu.ThreadExchangeStreamCaptureMode(mode)) *mode = -1;
  return 0;
}

static void end_setup(int mode) {
  if (mode >= 0) cu.ThreadExchangeStreamCaptureMode(&mode);
  pthread_mutex_unlock(&lock);
}

static CUresult load_image(void) {
  int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {compiler_log, (void *)(uintptr_t)(sizeof compiler_log - 1)};
  compiler_log[0] = 0;
  return is_ptx() ? cu.LibraryLoadData(&library, tlaot_image, options, values, 2, NULL, NULL, 0)
                  : cu.LibraryLoadData(&library, tlaot_image, NULL, NULL, 0, NULL, NULL, 0);
}

static int find_kernel(const tlaot_device_kernel *kernel, tlaot_kernel_state *state, CUkernel *out) {
  *out = __atomic_load_n(&state->handle, __ATOMIC_ACQUIRE);
  if (*out) return 0;
  CUresult error = CUDA_SUCCESS;
  const char *what = "cuLibraryLoadData";
  int mode;
  if (begin_setup(&mode)) return -1;
  if (!library) error = load_image();
  if (error) library = NULL;
  if (!error) {
    what = "cuLibraryGetKernel";
    error = cu.LibraryGetKernel(out, library, kernel->name);
  }
  if (!error) __atomic_store_n(&state->handle, *out, __ATOMIC_RELEASE);
  end_setup(mode);
  return error ? setup_failed(error, what) : 0;
}

/* Have a function on the current device now, where errors can be told and a capture allows it, and not at the launch: PTX is
 * compiled there, and of a cubin the driver would load the code lazily. */
static int bring_to_device(tlaot_kernel_state *state, CUkernel handle) {
  bool *compiled = &state->compiled[here.device];
  if (__atomic_load_n(compiled, __ATOMIC_ACQUIRE)) return 0;
  CUfunction function;
  int mode;
  if (begin_setup(&mode)) return -1;
  compiler_log[0] = 0;
  CUresult error = cu.KernelGetFunction(&function, handle);
  if (!error && cu.FuncLoad && !is_ptx()) error = cu.FuncLoad(function);
  if (!error) __atomic_store_n(compiled, true, __ATOMIC_RELEASE);
  end_setup(mode);
  return error ? setup_failed(error, "cuKernelGetFunction") : 0;
}

static int allow_shared(const tlaot_device_kernel *kernel, tlaot_kernel_state *state, CUkernel handle, int64_t bytes) {
  int32_t *allowed = &state->shared[here.device];
  if (bytes <= __atomic_load_n(allowed, __ATOMIC_ACQUIRE)) return 0;
  CUdevice device;
  int most = 0;
  CUresult error = cu.DeviceGet(&device, here.device);
  if (!error) error = cu.DeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
  if (error) return driver_failed(error, "cuDeviceGetAttribute");
  if (bytes > most)
    return tlaot_fail("RuntimeError", "%s: %s needs %lld bytes of dynamic shared memory, cuda:%d allows %d",
                      tlaot_the_plan.kernel, kernel->name, (long long)bytes, (int)here.device, most);
  int mode;
  if (begin_setup(&mode)) return -1;
  if (bytes > *allowed) {
    error = cu.KernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes, handle, device);
    if (!error) __atomic_store_n(allowed, (int32_t)bytes, __ATOMIC_RELEASE);
  }
  end_setup(mode);
  return error ? setup_failed(error, "cuKernelSetAttribute (dynamic shared memory)") : 0;
}

static int allow_cluster(tlaot_kernel_state *state, CUkernel handle) {
  bool *allowed = &state->big_cluster[here.device];
  if (__atomic_load_n(allowed, __ATOMIC_ACQUIRE)) return 0;
  CUdevice device;
  CUresult error = cu.DeviceGet(&device, here.device);
  int mode;
  if (begin_setup(&mode)) return -1;
  if (!error) error = cu.KernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, handle, device);
  if (!error) __atomic_store_n(allowed, true, __ATOMIC_RELEASE);
  end_setup(mode);
  return error ? setup_failed(error, "cuKernelSetAttribute (cluster size)") : 0;
}

/* A double in a 16-bit format with `mantissa` stored bits and this exponent bias; rounds once, to nearest even. */
static uint16_t narrow_float(double value, int mantissa, int bias) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t sign = (uint16_t)(bits >> 63 << 15);
  uint32_t infinity = (uint32_t)(2 * bias + 1) << mantissa;
  int exponent = (int)(bits >> 52 & 0x7ff);
  uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
  if (exponent == 0x7ff) return (uint16_t)(sign | infinity | (fraction ? 1u << (mantissa - 1) : 0));
  if (exponent) fraction |= UINT64_C(1) << 52;
  int target = exponent - 1023 + bias, shift = 52 - mantissa;
  if (target <= 0) shift += 1 - target, target = 0; /* subnormal */
  if (shift > 54) return sign;
  uint64_t kept = fraction >> shift, rest = fraction & ((UINT64_C(1) << shift) - 1), half = UINT64_C(1) << (shift - 1);
  if (rest > half || (rest == half && (kept & 1))) kept++;
  uint32_t result = (target > 0 ? (uint32_t)(target - 1) << mantissa : 0) + (uint32_t)kept;
  return (uint16_t)(sign | (result < infinity ? result : infinity));
}

static double float_of(const TVMFFIAny *arg) {
  return arg->type_index == kTVMFFIFloat ? arg->v_float64 : (double)arg->v_int64;
}

/* Integers are stored in full: devices and hosts are little-endian, so the first `width` bytes are the value. */
static void store_scalar(const tlaot_arg *plan, const TVMFFIAny *arg, void *slot) {
  double number = float_of(arg);
  float single = (float)number;
  uint16_t half;
  if (plan->kind == TLAOT_ARG_INT) {
    int64_t integer = arg->type_index == kTVMFFIFloat ? (int64_t)number : arg->v_int64;
    memcpy(slot, &integer, sizeof integer);
  } else if (plan->kind == TLAOT_ARG_BFLOAT16 || plan->width == 2) {
    half = plan->kind == TLAOT_ARG_BFLOAT16 ? narrow_float(number, 7, 127) : narrow_float(number, 10, 15);
    memcpy(slot, &half, sizeof half);
  } else if (plan->width == 4) {
    memcpy(slot, &single, sizeof single);
  } else {
    memcpy(slot, &number, sizeof number);
  }
}

static int store_argument(const tlaot_device_kernel *kernel, int i, const TVMFFIAny *arg, uint64_t *slot, void **param) {
  const tlaot_arg *plan = &kernel->args[i];
  *param = slot;
  if (plan->kind == TLAOT_ARG_TENSORMAP) {
    *param = arg->v_ptr;
    if (memcmp(arg->v_ptr, empty_map, sizeof empty_map)) return 0;
    return tlaot_fail("ValueError", "%s: %s: argument %d is a tensor map of a tensor with no items, which the hardware "
                      "cannot describe", tlaot_the_plan.kernel, kernel->name, i);
  }
  if (plan->kind != TLAOT_ARG_PTR) {
    store_scalar(plan, arg, slot);
    return 0;
  }
  *slot = (uint64_t)(uintptr_t)arg->v_ptr;
  if (plan->align <= 1 || (*slot & (plan->align - 1u)) == 0) return 0; /* a power of two */
  return tlaot_fail("ValueError",
                    "%s: %s: argument %d: misaligned pointer, expected an address that is a multiple of %u bytes, got "
                    "0x%llx", tlaot_the_plan.kernel, kernel->name, i, (unsigned)plan->align, (unsigned long long)*slot);
}

static unsigned add_attributes(const tlaot_device_kernel *kernel, const uint32_t *shape, CUlaunchAttribute *attrs) {
  unsigned n = 0;
  const uint32_t *cluster = shape + TLAOT_CLUSTER_X;
  memset(attrs, 0, 4 * sizeof *attrs);
  if (cluster[0] * cluster[1] * cluster[2] > 1) {
    attrs[n].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attrs[n].value.clusterDim.x = cluster[0];
    attrs[n].value.clusterDim.y = cluster[1];
    attrs[n++].value.clusterDim.z = cluster[2];
  }
  if (kernel->cooperative) {
    attrs[n].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attrs[n++].value.cooperative = 1;
  }
  if (kernel->pdl) {
    attrs[n].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attrs[n++].value.programmaticStreamSerializationAllowed = 1;
  }
  if (here.has_window) {
    attrs[n].id = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
    attrs[n++].value.accessPolicyWindow = here.window;
  }
  return n;
}

static int read_shape(const tlaot_device_kernel *kernel, const TVMFFIAny *values, uint32_t *shape) {
  for (int i = 0; i < TLAOT_DYN_SHARED; i++) shape[i] = 1;
  shape[TLAOT_DYN_SHARED] = 0;
  for (int i = 0; i < kernel->num_launch; i++) {
    int64_t value = values[i].v_int64;
    if (value < 0 || value > INT32_MAX)
      return tlaot_fail("ValueError", "%s: %s: launch parameter %d is out of range, got %lld", tlaot_the_plan.kernel,
                        kernel->name, i, (long long)value);
    shape[kernel->launch[i]] = (uint32_t)value;
  }
  return 0;
}

static int submit(const tlaot_device_kernel *kernel, CUkernel handle, const uint32_t *shape, void **params) {
  CUlaunchAttribute attrs[4];
  CUlaunchConfig config = {
      shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[TLAOT_DYN_SHARED],
      (CUstream)TVMFFIEnvGetStream(kDLCUDA, here.device), attrs, add_attributes(kernel, shape, attrs),
  };
  CUresult error = cu.LaunchKernelEx(&config, (CUfunction)handle, params, NULL);
  if (!error) return 0;
  char what[256];
  snprintf(what, sizeof what, "launching %.100s (grid %u x %u x %u, block %u x %u x %u, %u bytes of shared memory)",
           kernel->name, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[TLAOT_DYN_SHARED]);
  return driver_failed(error, what);
}

int tlaot_launch(const tlaot_function *self, const TVMFFIAny *args, int32_t num_args) {
  const tlaot_device_kernel *kernel = (const tlaot_device_kernel *)self;
  tlaot_kernel_state *state = &tlaot_kernel_states[kernel - tlaot_kernels];
  int count = kernel->num_args;
  uint64_t slots[count + 1];
  void *params[count + 1];
  uint32_t shape[TLAOT_DYN_SHARED + 1];
  CUkernel handle;
  if (num_args != count + kernel->num_launch)
    return tlaot_fail("RuntimeError", "%s: %s: the host code passes %d values, the launch plan has %d",
                      tlaot_the_plan.kernel, kernel->name, (int)num_args, count + kernel->num_launch);
  if (read_shape(kernel, args + count, shape)) return -1;
  if (shape[0] == 0 || shape[1] == 0 || shape[2] == 0) return 0; /* no blocks: nothing to do */
  for (int i = 0; i < count; i++)
    if (store_argument(kernel, i, &args[i], &slots[i], &params[i])) return -1;
  if (find_kernel(kernel, state, &handle)) return -1;
  if (is_ptx() && bring_to_device(state, handle)) return -1;
  if (shape[TLAOT_DYN_SHARED] && allow_shared(kernel, state, handle, shape[TLAOT_DYN_SHARED])) return -1;
  const uint32_t *cluster = shape + TLAOT_CLUSTER_X;
  if (cluster[0] * cluster[1] * cluster[2] > PORTABLE_CLUSTER && allow_cluster(state, handle)) return -1;
  return submit(kernel, handle, shape, params);
}

static int set_device(const tlaot_function *self, const TVMFFIAny *args, int32_t num_args) {
  (void)self;
  if (num_args >= 2 && args[1].v_int64 == here.device) return 0; /* the entry made it current */
  return tlaot_fail("RuntimeError", "%s: the host code asks for another device than that of the tensors",
                    tlaot_the_plan.kernel);
}

static int bad_count(const char *name, int32_t num_args) {
  return tlaot_fail("RuntimeError", "%s: the host code passes %d values to %s, which takes another number",
                    tlaot_the_plan.kernel, (int)num_args, name);
}

static int prepare(const tlaot_device_kernel *kernel, tlaot_kernel_state *state) {
  CUkernel handle;
  if (find_kernel(kernel, state, &handle) || bring_to_device(state, handle)) return -1;
  return kernel->dyn_shared > 0 ? allow_shared(kernel, state, handle, kernel->dyn_shared) : 0;
}

/* tlaot_preload(ordinal): all that the first launch on a device would do, ahead of it; the bytes of the image. */
TLAOT_EXPORT int32_t __tvm_ffi_tlaot_preload(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
  bool pushed;
  int status = 0;
  (void)self;
  if (num_args != 1 || args[0].type_index != kTVMFFIInt || args[0].v_int64 < 0 || args[0].v_int64 > INT32_MAX)
    return tlaot_fail("TypeError", "%s: tlaot_preload takes the ordinal of a device", tlaot_the_plan.kernel);
  if (tlaot_device_enter((int32_t)args[0].v_int64, &pushed)) return -1;
  for (int32_t i = 0; i < tlaot_num_kernels && !status; i++) status = prepare(&tlaot_kernels[i], &tlaot_kernel_states[i]);
  tlaot_device_leave(pushed);
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = tlaot_image_end - tlaot_image;
  return status;
}

/* The arguments that both kinds of tensor map start with. */
typedef struct {
  CUtensorMap *map;
  int type;
  uint32_t rank;
  void *address;
  uint64_t dims[MAX_RANK], strides[MAX_RANK]; /* strides in bytes; the first is not passed on */
  bool empty;
} map_head;

static const TVMFFIAny *read_head(const TVMFFIAny *args, map_head *head) {
  head->map = args[0].v_ptr;
  head->type = (int)args[1].v_int64;
  head->rank = (uint32_t)args[2].v_int64;
  head->address = args[3].v_ptr;
  head->empty = false;
  args += 4;
  for (uint32_t i = 0; i < head->rank; i++) {
    head->dims[i] = (uint64_t)args[i].v_int64;
    head->strides[i] = (uint64_t)args[head->rank + i].v_int64;
    if (head->dims[i] == 0) head->empty = true;
  }
  return args + 2 * head->rank;
}

static const TVMFFIAny *read_u32(const TVMFFIAny *args, uint32_t count, uint32_t *out) {
  for (uint32_t i = 0; i < count; i++) out[i] = (uint32_t)args[i].v_int64;
  return args + count;
}

static void mark_empty(CUtensorMap *map) {
  memset(map, 0, sizeof *map);
  memcpy(map, empty_map, sizeof empty_map);
}

static int map_failed(CUresult error, const char *function, const map_head *head, const uint32_t *box, uint32_t box_size) {
  char what[640];
  int used = snprintf(what, sizeof what, "%s (data type %d, address 0x%llx, dimensions [", function, head->type,
                      (unsigned long long)(uintptr_t)head->address);
  for (uint32_t i = 0; i < head->rank; i++)
    used += snprintf(what + used, sizeof what - used, "%s%llu", i ? ", " : "", (unsigned long long)head->dims[i]);
  used += snprintf(what + used, sizeof what - used, "], strides in bytes [");
  for (uint32_t i = 1; i < head->rank; i++)
    used += snprintf(what + used, sizeof what - used, "%s%llu", i > 1 ? ", " : "", (unsigned long long)head->strides[i]);
  used += snprintf(what + used, sizeof what - used, "], box [");
  for (uint32_t i = 0; i < box_size; i++) used += snprintf(what + used, sizeof what - used, "%s%u", i ? ", " : "", box[i]);
  snprintf(what + used, sizeof what - used, "]; the hardware wants an address and strides that are multiples of 16 bytes)");
  return driver_failed(error, what);
}

/* map, type, rank, address, dims.., strides.., box.., element strides.., interleave, swizzle, L2 promotion, fill */
static int encode_tiled(const tlaot_function *self, const TVMFFIAny *args, int32_t num_args) {
  map_head head;
  uint32_t box[MAX_RANK], steps[MAX_RANK];
  (void)self;
  int64_t rank = num_args >= 8 ? args[2].v_int64 : 0;
  if (rank < 1 || rank > MAX_RANK || num_args != 8 + 4 * rank) return bad_count("__tvm_tensormap_create_tiled", num_args);
  const TVMFFIAny *rest = read_head(args, &head);
  rest = read_u32(rest, head.rank, box);
  rest = read_u32(rest, head.rank, steps);
  if (head.empty) {
    mark_empty(head.map);
    return 0;
  }
  CUresult error = cu.TensorMapEncodeTiled(head.map, head.type, head.rank, head.address, head.dims, head.strides + 1, box,
                                           steps, (int)rest[0].v_int64, (int)rest[1].v_int64, (int)rest[2].v_int64,
                                           (int)rest[3].v_int64);
  return error ? map_failed(error, "cuTensorMapEncodeTiled", &head, box, head.rank) : 0;
}

/* map, type, rank, address, dims.., strides.., element strides.., lower corner.. (rank - 2), upper corner.., pixels,
 * channels, interleave, swizzle, L2 promotion, fill */
static int encode_im2col(const tlaot_function *self, const TVMFFIAny *args, int32_t num_args) {
  map_head head;
  uint32_t steps[MAX_RANK], box[2];
  int lower[MAX_RANK], upper[MAX_RANK];
  (void)self;
  int64_t rank = num_args >= 8 ? args[2].v_int64 : 0;
  if (rank < 3 || rank > MAX_RANK || num_args != 6 + 5 * rank) return bad_count("__tvm_tensormap_create_im2col", num_args);
  const TVMFFIAny *rest = read_u32(read_head(args, &head), (uint32_t)rank, steps);
  for (int64_t i = 0; i < rank - 2; i++) {
    lower[i] = (int)rest[i].v_int64;
    upper[i] = (int)rest[rank - 2 + i].v_int64;
  }
  rest = read_u32(rest + 2 * (rank - 2), 2, box); /* pixels, channels */
  if (head.empty) {
    mark_empty(head.map);
    return 0;
  }
  CUresult error = cu.TensorMapEncodeIm2col(head.map, head.type, head.rank, head.address, head.dims, head.strides + 1,
                                            lower, upper, box[1], box[0], steps, (int)rest[0].v_int64,
                                            (int)rest[1].v_int64, (int)rest[2].v_int64, (int)rest[3].v_int64);
  return error ? map_failed(error, "cuTensorMapEncodeIm2col", &head, box, 2) : 0;
}

/* base address, bytes, hit ratio, ... The window becomes an attribute of the launches that follow in this call, not of the
 * caller's stream: it is captured with them and nothing else runs under it. A hint never fails a launch. The context's
 * set-aside for persisting lines grows where it is too small and is not shrunk again, for the launches that it serves
 * run later than this code. */
static int set_window(const tlaot_function *self, const TVMFFIAny *args, int32_t num_args) {
  CUdevice device;
  int most_persisting = 0, most_window = 0;
  size_t limit = 0;
  (void)self;
  if (num_args < 2) return bad_count("__tvm_cuda_stream_set_access_policy_window", num_args);
  size_t bytes = args[1].v_int64 > 0 ? (size_t)args[1].v_int64 : 0;
  here.has_window = false;
  if (cu.DeviceGet(&device, here.device) ||
      cu.DeviceGetAttribute(&most_persisting, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, device) ||
      cu.DeviceGetAttribute(&most_window, CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, device) ||
      most_persisting <= 0 || most_window <= 0 || bytes == 0)
    return 0;
  size_t wanted = bytes < (size_t)most_persisting ? bytes : (size_t)most_persisting;
  int mode;
  if (begin_setup(&mode)) return -1;
  if (cu.CtxGetLimit(&limit, CU_LIMIT_PERSISTING_L2_CACHE_SIZE) == CUDA_SUCCESS && limit < wanted)
    cu.CtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, wanted);
  end_setup(mode);
  here.window = (CUaccessPolicyWindow){
      .base_ptr = args[0].v_ptr,
      .num_bytes = bytes < (size_t)most_window ? bytes : (size_t)most_window,
      .hitRatio = num_args >= 3 ? (float)float_of(&args[2]) : 0.8f, /* TileLang's default */
      .hitProp = CU_ACCESS_PROPERTY_PERSISTING,
      .missProp = CU_ACCESS_PROPERTY_STREAMING,
  };
  here.has_window = true;
  return 0;
}

static int reset_window(const tlaot_function *self, const TVMFFIAny *args, int32_t num_args) {
  (void)self, (void)args, (void)num_args;
  here.has_window = false;
  return 0;
}

const tlaot_function *tlaot_find(const char *name) {
  static const struct {
    const char *name;
    tlaot_function function;
  } provided[] = {
      {"__tvm_set_device", {set_device}},
      {"__tvm_tensormap_create_tiled", {encode_tiled}},
      {"__tvm_tensormap_create_im2col", {encode_im2col}},
      {"__tvm_cuda_stream_set_access_policy_window", {set_window}},
      {"__tvm_cuda_stream_reset_access_policy_window", {reset_window}},
  };
  for (size_t i = 0; i < sizeof provided / sizeof *provided; i++)
    if (strcmp(name, provided[i].name) == 0) return &provided[i].function;
  for (int32_t i = 0; i < tlaot_num_kernels; i++)
    if (strcmp(name, tlaot_kernels[i].name) == 0) return &tlaot_kernels[i].function;
  return NULL;
}
