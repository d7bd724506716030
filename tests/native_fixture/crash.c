/* An executable.so whose call ends the process. */
#include <stdlib.h>

#include <tvm/ffi/c_api.h>

__attribute__((visibility("default"))) int __tvm_ffi_tlaot_call(void *self, const TVMFFIAny *args, int32_t num_args,
                                                                 TVMFFIAny *result) {
  (void)self, (void)args, (void)num_args, (void)result;
  abort();
}

__attribute__((visibility("default"))) int __tvm_ffi_tlaot_cpu_level(void *self, const TVMFFIAny *args,
                                                                      int32_t num_args, TVMFFIAny *result) {
  (void)self, (void)args, (void)num_args;
  result->type_index = kTVMFFIInt;
  result->v_int64 = 2;
  return 0;
}
