/* A stand-in for libcuda.so.1: logs every call that matters as one line into the file named by FAKE_CUDA_LOG.
 *
 * Devices 0 to 7. FAKE_CUDA_DEVICES="8.6:82:101376 9.0:132" gives the first of them capabilities, SM counts and (where it is
 * not 232448) the shared memory of a block, the last of it the others; FAKE_CUDA_VERSION what cuDriverGetVersion answers. PTX is "compiled" for each context when a function of it is needed.
 *
 * FAKE_CUDA_FAIL="function:code" makes a function fail; a context is a number (device + 1) cast to a pointer. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_api.h"

static _Thread_local CUcontext stack[16];
static _Thread_local int depth;
static size_t persisting = 0;

static void say(const char *format, ...) {
  const char *path = getenv("FAKE_CUDA_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  va_list list;
  if (!file) return;
  va_start(list, format);
  vfprintf(file, format, list);
  va_end(list);
  fputc('\n', file);
  fclose(file);
}

static CUresult fate(const char *function) {
  const char *fail = getenv("FAKE_CUDA_FAIL");
  size_t n = strlen(function);
  return fail && strncmp(fail, function, n) == 0 && fail[n] == ':' ? atoi(fail + n + 1) : CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags) { say("init %u", flags); return fate("cuInit"); }
CUresult cuGetErrorName(CUresult e, const char **t) {
  static char text[32];
  snprintf(text, sizeof text, "FAKE_ERROR_%d", e);
  *t = text;
  return 0;
}
CUresult cuGetErrorString(CUresult e, const char **t) { (void)e; *t = "made up"; return 0; }
CUresult cuDeviceGet(CUdevice *d, int ordinal) { *d = ordinal; return ordinal < 8 ? 0 : 101; }
CUresult cuDeviceGetName(char *name, int size, CUdevice d) { (void)d; snprintf(name, size, "Fake GPU"); return 0; }
CUresult cuDriverGetVersion(int *version) {
  const char *text = getenv("FAKE_CUDA_VERSION");
  *version = text ? atoi(text) : 13000;
  return fate("cuDriverGetVersion");
}
CUresult cuDeviceGetAttribute(int *v, int attribute, CUdevice d) {
  const char *devices = getenv("FAKE_CUDA_DEVICES"), *next;
  int major = 8, minor = 6, count = 82, shared = 232448;
  for (; devices && sscanf(devices, "%d.%d:%d:%d", &major, &minor, &count, &shared) >= 3 && d > 0; d--) {
    if (!(next = strchr(devices, ' '))) break;
    devices = next + 1;
    shared = 232448;
  }
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *v = minor; break;
    case 16: *v = count; break; /* multiprocessors */
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *v = shared; break;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: *v = 1000; break;
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE: *v = 3000; break;
    default: return 1;
  }
  return 0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
  say("retain %d", d);
  *c = (CUcontext)(uintptr_t)(d + 1);
  return fate("cuDevicePrimaryCtxRetain");
}
CUresult cuCtxGetCurrent(CUcontext *c) { *c = depth ? stack[depth - 1] : NULL; return 0; }
CUresult cuCtxGetDevice(CUdevice *d) {
  if (!depth) return 201;
  *d = (CUdevice)(uintptr_t)stack[depth - 1] - 1;
  return 0;
}
CUresult cuCtxPushCurrent_v2(CUcontext c) {
  say("push %d", (int)(uintptr_t)c - 1);
  stack[depth++] = c;
  return 0;
}
CUresult cuCtxPopCurrent_v2(CUcontext *c) {
  *c = stack[--depth];
  say("pop %d", (int)(uintptr_t)*c - 1);
  return 0;
}
CUresult cuCtxGetLimit(size_t *v, int limit) { (void)limit; *v = persisting; return 0; }
CUresult cuCtxSetLimit(int limit, size_t v) { say("limit %d %zu", limit, v); persisting = v; return 0; }
CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  static _Thread_local int now = 0;
  int before = now;
  now = *mode;
  *mode = before;
  return 0;
}
static char *jit_log;
static size_t jit_log_size;

/* FAKE_CUDA_JIT_LOG: what the compiler of PTX says; FAKE_CUDA_STALL: it waits until there is such a file. */
static CUresult compile_ptx(const char *function) {
  const char *text = getenv("FAKE_CUDA_JIT_LOG"), *stall = getenv("FAKE_CUDA_STALL");
  while (stall && access(stall, F_OK)) usleep(1000);
  if (text && jit_log && fate(function)) snprintf(jit_log, jit_log_size, "%s", text);
  return fate(function);
}

CUresult cuLibraryLoadData(CUlibrary *l, const void *code, int *jo, void **jv, unsigned nj, int *o, void **v, unsigned n) {
  (void)o, (void)v;
  const char *text = code;
  if (text[0] == 0x7f) {
    say("load %.3s  %u %u", text + 1, nj, n);
  } else {
    unsigned sum = 0;
    for (size_t i = 0; i < strlen(text); i++) sum = sum * 31 + (unsigned char)text[i];
    say("load PTX %zu bytes, sum %08x, %u %u", strlen(text), sum, nj, n);
    for (unsigned i = 0; i < nj; i++) {
      if (jo[i] == CU_JIT_ERROR_LOG_BUFFER) jit_log = jv[i];
      if (jo[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) jit_log_size = (size_t)(uintptr_t)jv[i];
    }
    if (compile_ptx("cuLibraryLoadData")) return fate("cuLibraryLoadData");
  }
  *l = (CUlibrary)(uintptr_t)0x11;
  return fate("cuLibraryLoadData");
}
CUresult cuLibraryGetKernel(CUkernel *k, CUlibrary l, const char *name) {
  (void)l;
  say("kernel %s", name);
  *k = (CUkernel)(uintptr_t)strdup(name);
  return fate("cuLibraryGetKernel");
}
CUresult cuKernelGetFunction(CUfunction *f, CUkernel k) {
  say("function %s device %d", (const char *)k, depth ? (int)(uintptr_t)stack[depth - 1] - 1 : -1);
  *f = (CUfunction)k;
  return compile_ptx("cuKernelGetFunction");
}
CUresult cuFuncLoad(CUfunction f) { say("func load %s", (const char *)f); return fate("cuFuncLoad"); }
CUresult cuKernelSetAttribute(int attribute, int value, CUkernel k, CUdevice d) {
  say("attribute %d %d %s device %d", attribute, value, (const char *)k, d);
  return fate("cuKernelSetAttribute");
}

/* FAKE_CUDA_WIDTHS: the widths of the launch's parameters, "8 4 128 ..."; each is logged in hexadecimal. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
  char line[4096];
  int n = 0;
  (void)extra;
  n += snprintf(line + n, sizeof line - n, "launch %s grid %u %u %u block %u %u %u shared %u stream %llx", (const char *)f,
                c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes,
                (unsigned long long)(uintptr_t)c->hStream);
  for (unsigned i = 0; i < c->numAttrs; i++) {
    const CUlaunchAttributeValue *v = &c->attrs[i].value;
    switch (c->attrs[i].id) {
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        n += snprintf(line + n, sizeof line - n, " cluster %u %u %u", v->clusterDim.x, v->clusterDim.y, v->clusterDim.z);
        break;
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: n += snprintf(line + n, sizeof line - n, " cooperative %d", v->cooperative); break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        n += snprintf(line + n, sizeof line - n, " pdl %d", v->programmaticStreamSerializationAllowed);
        break;
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        n += snprintf(line + n, sizeof line - n, " window %llx %zu %.2f %d %d",
                      (unsigned long long)(uintptr_t)v->accessPolicyWindow.base_ptr, v->accessPolicyWindow.num_bytes,
                      v->accessPolicyWindow.hitRatio, v->accessPolicyWindow.hitProp, v->accessPolicyWindow.missProp);
        break;
      default: n += snprintf(line + n, sizeof line - n, " unknown attribute %d", c->attrs[i].id);
    }
  }
  n += snprintf(line + n, sizeof line - n, " params");
  const char *widths = getenv("FAKE_CUDA_WIDTHS");
  for (int i = 0; widths && *widths; i++) {
    int width = (int)strtol(widths, (char **)&widths, 10);
    n += snprintf(line + n, sizeof line - n, " ");
    for (int b = 0; b < width && b < 16; b++) n += snprintf(line + n, sizeof line - n, "%02x", ((uint8_t *)params[i])[b]);
  }
  say("%s", line);
  return fate("cuLaunchKernelEx");
}

static void say_list(char *line, size_t size, const char *name, const uint64_t *v64, const uint32_t *v32, int count) {
  size_t n = strlen(line);
  n += snprintf(line + n, size - n, " %s", name);
  for (int i = 0; i < count; i++) n += snprintf(line + n, size - n, " %lld", v64 ? (long long)v64[i] : (long long)(int)v32[i]);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                                const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                int swizzle, int promotion, int fill) {
  char line[1024];
  snprintf(line, sizeof line, "tiled type %d rank %u", type, rank);
  say_list(line, sizeof line, "dims", dims, NULL, rank);
  say_list(line, sizeof line, "strides", strides, NULL, rank - 1);
  say_list(line, sizeof line, "box", NULL, box, rank);
  say_list(line, sizeof line, "steps", NULL, steps, rank);
  say("%s rest %d %d %d %d aligned %d", line, interleave, swizzle, promotion, fill, (uintptr_t)map % 64 == 0);
  memset(map, 0x5a, sizeof *map);
  memcpy(map, &address, sizeof address);
  return fate("cuTensorMapEncodeTiled");
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                                 const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                                 uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                                 int fill) {
  char line[1024];
  snprintf(line, sizeof line, "im2col type %d rank %u", type, rank);
  say_list(line, sizeof line, "dims", dims, NULL, rank);
  say_list(line, sizeof line, "strides", strides, NULL, rank - 1);
  say_list(line, sizeof line, "lower", NULL, (const uint32_t *)lower, rank - 2);
  say_list(line, sizeof line, "upper", NULL, (const uint32_t *)upper, rank - 2);
  say_list(line, sizeof line, "steps", NULL, steps, rank);
  say("%s channels %u pixels %u rest %d %d %d %d", line, channels, pixels, interleave, swizzle, promotion, fill);
  memset(map, 0x5a, sizeof *map);
  memcpy(map, &address, sizeof address);
  return fate("cuTensorMapEncodeIm2col");
}
