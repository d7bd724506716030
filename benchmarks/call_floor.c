/* What no call of a kernel can do without: an FFI function that does nothing, and launches of a kernel that does nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default"), used))

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned num_attributes;
} launch_config; /* cuda.h: CUlaunchConfig */

enum { DYNAMIC_SHARED_BYTES = 8 }; /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */

static int fail(const char *what) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", what);
  return -1;
}

EXPORT int __tvm_ffi_empty(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
  (void)self, (void)args, (void)num_args;
  result->type_index = kTVMFFINone;
  result->v_int64 = 0;
  return 0;
}

/* launches(cubin's address, number of tensor maps, number of pointers, grid x, grid y, threads, shared bytes, count) -> ns a launch, on
 * the default stream of the current context; the parameters are as large as a kernel's with these would be. */
EXPORT int __tvm_ffi_launches(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
  static void *function;
  static _Alignas(64) unsigned char memory[64][128];
  void *params[64], *module = NULL, *driver = dlopen("libcuda.so.1", RTLD_NOW);
  (void)self;
  if (num_args != 8 || !driver) return fail("no driver");
  int (*load)(void **, const void *) = (int (*)(void **, const void *))dlsym(driver, "cuModuleLoadData");
  int (*find)(void **, void *, const char *) = (int (*)(void **, void *, const char *))dlsym(driver, "cuModuleGetFunction");
  int (*set)(void *, int, int) = (int (*)(void *, int, int))dlsym(driver, "cuFuncSetAttribute");
  int (*launch)(const launch_config *, void *, void **, void **) =
      (int (*)(const launch_config *, void *, void **, void **))dlsym(driver, "cuLaunchKernelEx");
  if (!function) {
    if (load(&module, (const void *)(uintptr_t)args[0].v_int64) || find(&function, module, "nothing")) return fail("cuModuleLoadData");
    if (set(function, DYNAMIC_SHARED_BYTES, (int)args[6].v_int64)) return fail("cuFuncSetAttribute");
  }
  int64_t num_params = args[1].v_int64 + args[2].v_int64, count = args[7].v_int64;
  for (int64_t i = 0; i < num_params && i < 64; i++) params[i] = memory[i];
  launch_config config = {{(unsigned)args[3].v_int64, (unsigned)args[4].v_int64, 1},
                          {(unsigned)args[5].v_int64, 1, 1},
                          (unsigned)args[6].v_int64,
                          NULL,
                          NULL,
                          0};
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int64_t i = 0; i < count; i++)
    if (launch(&config, function, params, NULL)) return fail("cuLaunchKernelEx");
  clock_gettime(CLOCK_MONOTONIC, &end);
  result->type_index = kTVMFFIFloat;
  result->zero_padding = 0;
  result->v_float64 = ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / (double)count;
  return 0;
}
