/* What the hand-written executables of these tests share: the two functions that the run-time side calls, and their arguments. */
#include <stddef.h>
#include <stdint.h>

#include <tvm/ffi/c_api.h>

/* The head of a function of an executable.so, to be followed by its body. */
#define FUNCTION(name)                     \
  __attribute__((visibility("default"))) int \
  __tvm_ffi_tlaot_##name(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result)

/* The x86-64 level that it needs. */
#define CPU_LEVEL(level)                    \
  FUNCTION(cpu_level) {                     \
    (void)self, (void)args, (void)num_args; \
    result->type_index = kTVMFFIInt;        \
    result->v_int64 = level;                \
    return 0;                               \
  }

/* An argument as a tensor; NULL for a number. */
static inline DLTensor *tensor_of(const TVMFFIAny *arg) {
  if (arg->type_index == kTVMFFIDLTensorPtr) return (DLTensor *)arg->v_ptr;
  if (arg->type_index == kTVMFFITensor) return (DLTensor *)((char *)arg->v_ptr + sizeof(TVMFFIObject));
  return NULL;
}

static inline int64_t elements(const DLTensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->ndim; ++i) n *= t->shape[i];
  return n;
}

static inline void *data_of(const DLTensor *t) { return (char *)t->data + t->byte_offset; }

/* A call that has no result. */
static inline int done(TVMFFIAny *result) {
  result->type_index = kTVMFFINone;
  result->v_int64 = 0;
  return 0;
}
