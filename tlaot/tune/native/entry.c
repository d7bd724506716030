/* The exported entry point: every argument is checked against the plan's table, in 64 bits, before the generated host code
 * sees it. That code compares sizes as int32 and knows nothing of alignment. */
#include "tlaot.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };

int tlaot_fail(const char *kind, const char *format, ...) {
  char message[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(message, sizeof message, format, list);
  va_end(list);
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

static const char *dtype_name(char *out, size_t size, int code, int bits, int lanes) {
  static const char *const names[] = {"int",  "uint", "float", "handle", "bfloat", "complex", "bool", "float8_e3m4",
                                      "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
                                      "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn",
                                      "float6_e3m2fn", "float4_e2m1fn"};
  int known = code < (int)(sizeof names / sizeof *names);
  int used = known ? snprintf(out, size, "%s", names[code]) : snprintf(out, size, "dtype code %d, bits ", code);
  if (code < DL_BOOL || !known) used += snprintf(out + used, size - used, "%d", bits);
  if (lanes != 1) snprintf(out + used, size - used, "x%d", lanes);
  return out;
}

static const char *device_name(int type) {
  static const char *const names[] = {"device 0", "cpu", "cuda", "cuda host", "opencl", "device 5", "device 6",
                                      "vulkan", "metal", "vpi", "rocm", "rocm host", "device 12", "cuda managed"};
  return type >= 0 && type < (int)(sizeof names / sizeof *names) ? names[type] : "another device";
}

static const char *kind_name(int type_index) {
  switch (type_index) {
    case kTVMFFINone: return "None";
    case kTVMFFIInt: return "an int";
    case kTVMFFIBool: return "a bool";
    case kTVMFFIFloat: return "a float";
    case kTVMFFIOpaquePtr: return "a pointer";
    case kTVMFFIDLTensorPtr: case kTVMFFITensor: return "a tensor";
    case kTVMFFIRawStr: case kTVMFFISmallStr: case kTVMFFIStr: return "a string";
    default: return "another object";
  }
}

/* "<kernel>: argument <i> (<name>): <what>, expected <x>, got <y>" */
#define REFUSE(kind, plan, i, format, ...) \
  tlaot_fail(kind, "%s: argument %d (%s): " format, (plan)->kernel, (int)(i), (plan)->params[i].name, __VA_ARGS__)

static int check_scalar(const tlaot_plan *plan, int i, const TVMFFIAny *arg) {
  const tlaot_param *param = &plan->params[i];
  char name[48];
  int type = arg->type_index;
  bool number = type == kTVMFFIInt || type == kTVMFFIBool;
  dtype_name(name, sizeof name, param->code, param->bits, param->lanes);
  if (param->code == DL_FLOAT || param->code == DL_BFLOAT) {
    if (number || type == kTVMFFIFloat) return 0;
    return REFUSE("TypeError", plan, i, "wrong kind, expected a float (%s), got %s", name, kind_name(type));
  }
  if (!number) return REFUSE("TypeError", plan, i, "wrong kind, expected an int (%s), got %s", name, kind_name(type));
  int64_t value = arg->v_int64, low = 0, high = INT64_MAX;
  if (param->code == DL_BOOL) high = 1;
  else if (param->code == DL_INT && param->bits < 64) high = (INT64_C(1) << (param->bits - 1)) - 1, low = -high - 1;
  else if (param->code == DL_INT) low = INT64_MIN;
  else if (param->bits < 64) high = (INT64_C(1) << param->bits) - 1;
  else low = INT64_MIN; /* uint64: the FFI carries its bits in an int64 */
  if (value >= low && value <= high) return 0;
  return REFUSE("ValueError", plan, i, "value out of range, expected %s, got %lld", name, (long long)value);
}

/* A symbolic extent takes the value of its first use; generated code keeps sizes in int32. */
static int bind_extent(const tlaot_plan *plan, int i, const char *what, int axis, tlaot_extent extent, int64_t got,
                       int64_t *sizes) {
  if (extent.symbol < 0) {
    if (got == extent.value) return 0;
    return REFUSE("ValueError", plan, i, "%s[%d] does not fit, expected %lld, got %lld", what, axis,
                  (long long)extent.value, (long long)got);
  }
  int64_t *bound = &sizes[extent.symbol];
  if (*bound == INT64_MIN) {
    if (got < 0 || got > INT32_MAX)
      return REFUSE("ValueError", plan, i, "%s[%d] (%s) is out of range, expected 0 to 2147483647, got %lld", what,
                    axis, plan->symbols[extent.symbol], (long long)got);
    *bound = got;
  }
  if (*bound == got) return 0;
  return REFUSE("ValueError", plan, i, "%s[%d] does not fit, expected %s = %lld, got %lld", what, axis,
                plan->symbols[extent.symbol], (long long)*bound, (long long)got);
}

/* `strides` receives what the host code sees: as declared, also where a dimension of size 1 has any stride. */
static int check_layout(const tlaot_plan *plan, int i, const DLTensor *tensor, int64_t *sizes, int64_t *strides,
                        bool *empty) {
  const tlaot_param *param = &plan->params[i];
  *empty = false;
  for (int d = 0; d < param->ndim; d++) {
    if (bind_extent(plan, i, "shape", d, param->shape[d], tensor->shape[d], sizes)) return -1;
    if (tensor->shape[d] == 0) *empty = true;
  }
  int64_t compact = 1;
  for (int d = param->ndim - 1; d >= 0; d--) {
    int64_t size = tensor->shape[d], got = tensor->strides ? tensor->strides[d] : compact;
    tlaot_extent expected = {compact, -1};
    if (param->strides) expected = param->strides[d];
    compact *= size;
    if (expected.symbol >= 0) {
      /* The stride of a dimension of size 1 is never used, but a symbolic one must get a value. */
      if (size > 1 || sizes[expected.symbol] == INT64_MIN) {
        if (bind_extent(plan, i, "strides", d, expected, got, sizes)) return -1;
      }
      strides[d] = sizes[expected.symbol];
      continue;
    }
    if (size > 1 && !*empty && got != expected.value)
      return REFUSE("ValueError", plan, i, "strides[%d] does not fit (%s), expected %lld, got %lld", d,
                    param->strides ? "in elements" : "the tensor must be contiguous", (long long)expected.value,
                    (long long)got);
    strides[d] = expected.value;
  }
  return 0;
}

/* Elements from the first to the last, both included; INT64_MAX where that is more than can be told. */
static int64_t span_of(const DLTensor *tensor, const int64_t *strides) {
  int64_t span = 1, step;
  for (int d = 0; d < tensor->ndim; d++)
    if (__builtin_mul_overflow(tensor->shape[d] - 1, strides[d], &step) || __builtin_add_overflow(span, step, &span))
      return INT64_MAX;
  return span;
}

static int check_tensor(const tlaot_plan *plan, int i, const DLTensor *tensor, int64_t *sizes, int64_t *strides,
                        int32_t *device, bool *empty) {
  const tlaot_param *param = &plan->params[i];
  char expected[48], got[48];
  if (tensor->device.device_type != (DLDeviceType)plan->device_type)
    return REFUSE("ValueError", plan, i, "wrong device, expected %s, got %s", device_name(plan->device_type),
                  device_name(tensor->device.device_type));
  if (tensor->dtype.code != param->code || tensor->dtype.bits != param->bits || tensor->dtype.lanes != param->lanes)
    return REFUSE("TypeError", plan, i, "wrong dtype, expected %s, got %s",
                  dtype_name(expected, sizeof expected, param->code, param->bits, param->lanes),
                  dtype_name(got, sizeof got, tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes));
  if (tensor->ndim != param->ndim)
    return REFUSE("ValueError", plan, i, "wrong number of dimensions, expected %d, got %d", param->ndim,
                  (int)tensor->ndim);
  if (*device < 0) *device = tensor->device.device_id;
  if (*device != tensor->device.device_id)
    return REFUSE("ValueError", plan, i, "tensors on several devices, expected %s:%d, got %s:%d",
                  device_name(plan->device_type), (int)*device, device_name(plan->device_type),
                  (int)tensor->device.device_id);
  if (check_layout(plan, i, tensor, sizes, strides, empty)) return -1;
  if (*empty) return 0;
  if (param->narrow && span_of(tensor, strides) > INT32_MAX)
    return REFUSE("ValueError", plan, i, "too large for code that addresses elements with 32 bits, expected at most "
                  "2147483647 elements from the first to the last, got %lld", (long long)span_of(tensor, strides));
  /* A tensor without memory: torch's FakeTensor, one whose storage was freed. */
  if (tensor->data == NULL) return REFUSE("ValueError", plan, i, "no data, expected %s, got a null pointer", "an address");
  uintptr_t address = (uintptr_t)tensor->data + tensor->byte_offset;
  if (param->align <= 1) return 0;
  if (address & (param->align - 1)) /* a power of two */
    return REFUSE("ValueError", plan, i, "misaligned data, expected an address that is a multiple of %u bytes, got 0x%llx",
                  (unsigned)param->align, (unsigned long long)address);
  return 0;
}

/* Checks all arguments; `normal`, `tensors` and `strides` receive what the host code gets: plain DLTensors with no byte
 * offset and with explicit strides (TVM takes missing strides for compact, TileLang for ones). */
static int check_arguments(const tlaot_plan *plan, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *normal,
                           DLTensor *tensors, int64_t *strides, int64_t *sizes, int32_t *device, bool *no_work) {
  int written = 0, written_empty = 0;
  if (num_args != plan->num_params)
    return tlaot_fail("TypeError", "%s: wrong number of arguments, expected %d, got %d", plan->kernel,
                      (int)plan->num_params, (int)num_args);
  for (int i = 0; i < num_args; i++) {
    const tlaot_param *param = &plan->params[i];
    int type = args[i].type_index;
    normal[i] = args[i];
    if (param->ndim < 0) {
      if (check_scalar(plan, i, &args[i])) return -1;
      continue;
    }
    if (type == kTVMFFINone && param->optional) {
      strides += param->ndim;
      continue;
    }
    const DLTensor *tensor = args[i].v_ptr;
    if (type == kTVMFFITensor) tensor = (const DLTensor *)((const char *)args[i].v_ptr + sizeof(TVMFFIObject));
    if ((type != kTVMFFITensor && type != kTVMFFIDLTensorPtr) || tensor == NULL)
      return REFUSE("TypeError", plan, i, "wrong kind, expected a tensor, got %s", kind_name(type));
    bool empty;
    if (check_tensor(plan, i, tensor, sizes, strides, device, &empty)) return -1;
    written += param->written;
    written_empty += param->written && empty;
    tensors[i] = *tensor;
    if (tensor->data != NULL) tensors[i].data = (char *)tensor->data + tensor->byte_offset;
    tensors[i].byte_offset = 0;
    tensors[i].strides = strides;
    strides += param->ndim;
    normal[i].type_index = kTVMFFIDLTensorPtr;
    normal[i].zero_padding = 0;
    normal[i].v_ptr = &tensors[i];
  }
  *no_work = written > 0 && written == written_empty;
  return 0;
}

#ifdef TLAOT_CPU
#if defined(__x86_64__)
static uint64_t extended_state(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((uint64_t)high << 32) | low;
}

/* The levels' lists are those of the x86-64 psABI, table 3.1; AVX state must be enabled by the system as well. */
static int measure_cpu_level(void) {
  unsigned a, b, c, d, b7 = 0, c8 = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 1;
  unsigned c1 = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) b7 = b;
  if (__get_cpuid(0x80000001u, &a, &b, &c, &d)) c8 = c;
  const unsigned v2 = bit_SSE3 | bit_SSSE3 | bit_CMPXCHG16B | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT;
  if ((c1 & v2) != v2 || !(c8 & bit_LAHF_LM)) return 1;
  const unsigned v3 = bit_AVX | bit_FMA | bit_F16C | bit_MOVBE | bit_OSXSAVE;
  const unsigned v3_7 = bit_AVX2 | bit_BMI | bit_BMI2;
  if ((c1 & v3) != v3 || (b7 & v3_7) != v3_7 || !(c8 & bit_LZCNT)) return 2;
  uint64_t state = extended_state();
  if ((state & 0x6) != 0x6) return 2;
  const unsigned v4_7 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  return (b7 & v4_7) == v4_7 && (state & 0xe6) == 0xe6 ? 4 : 3;
}
#else
static int measure_cpu_level(void) { return 0; } /* no CPU target of this architecture yet */
#endif

static int cpu_level(void) {
  static int known; /* two threads that both measure write the same value */
  int level = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (level == 0) __atomic_store_n(&known, level = measure_cpu_level(), __ATOMIC_RELAXED);
  return level;
}

static int require_cpu_level(const tlaot_plan *plan) {
  static const char *const names[] = {"another architecture", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
  int level = cpu_level();
  if (level >= plan->cpu_rank) return 0;
  return tlaot_fail("RuntimeError", "%s: this variant needs a processor of level %s, this one has level %s",
                    plan->kernel, names[plan->cpu_rank], names[level]);
}

TLAOT_EXPORT int32_t __tvm_ffi_tlaot_cpu_level(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
  (void)self, (void)args, (void)num_args;
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = cpu_level();
  return 0;
}
#endif

TLAOT_EXPORT int32_t __tvm_ffi_tlaot_call(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
  const tlaot_plan *plan = &tlaot_the_plan;
  TVMFFIAny normal[plan->num_params + 1];
  DLTensor tensors[plan->num_params + 1];
  int64_t sizes[plan->num_symbols + 1], strides[plan->num_dims + 1];
  int32_t device = -1;
  bool no_work;
  (void)self;
  result->type_index = kTVMFFINone;
  result->zero_padding = 0;
  result->v_int64 = 0;
  for (int s = 0; s < plan->num_symbols; s++) sizes[s] = INT64_MIN;
#ifdef TLAOT_CPU
  if (require_cpu_level(plan)) return -1;
#endif
  if (check_arguments(plan, args, num_args, normal, tensors, strides, sizes, &device, &no_work)) return -1;
  if (no_work) return 0;
#ifdef TLAOT_CPU
  return tlaot_host(normal, sizes);
#else
  bool pushed;
  if (tlaot_device_enter(device, &pushed)) return -1;
  int32_t status = tlaot_host(normal, sizes);
  tlaot_device_leave(pushed);
  return status;
#endif
}
