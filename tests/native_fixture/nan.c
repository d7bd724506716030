/* An executable.so that fills its third argument, float32, with NaN. */
#include <stdint.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

__attribute__((visibility("default"))) int __tvm_ffi_tlaot_call(void *self, const TVMFFIAny *args, int32_t num_args,
                                                                 TVMFFIAny *result) {
  const DLTensor *out = args[2].type_index == kTVMFFIDLTensorPtr
                            ? (const DLTensor *)args[2].v_ptr
                            : (const DLTensor *)((char *)args[2].v_ptr + sizeof(TVMFFIObject));
  int64_t bytes = 4;
  (void)self, (void)num_args;
  for (int i = 0; i < out->ndim; ++i) bytes *= out->shape[i];
  memset((char *)out->data + out->byte_offset, 0xFF, bytes);
  result->type_index = kTVMFFINone;
  result->v_int64 = 0;
  return 0;
}

__attribute__((visibility("default"))) int __tvm_ffi_tlaot_cpu_level(void *self, const TVMFFIAny *args,
                                                                      int32_t num_args, TVMFFIAny *result) {
  (void)self, (void)args, (void)num_args;
  result->type_index = kTVMFFIInt;
  result->v_int64 = 2;
  return 0;
}
