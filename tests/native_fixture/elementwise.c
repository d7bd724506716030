/* A hand-written executable.so for the tests of the run-time side: the native contract and nothing more.
 *
 * Out of the tensors in OUT_MASK each gets LABEL + the sum of the other tensors, times every scalar (float32), or a
 * copy of the first input's bytes (any other dtype). Argument checks are few: what these tests need.
 */
#include <stdio.h>
#include <string.h>

#include "executable.h"

#ifndef OUT_MASK
#define OUT_MASK 0
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef LEVEL
#define LEVEL 1
#endif
#ifndef LABEL
#define LABEL 0
#endif
#ifndef ALIGN
#define ALIGN 1
#endif
/* So many steps of a loop that does nothing, at each call: for a kernel that is slower than another one. */
#ifndef SPIN
#define SPIN 0
#endif
/* 1: of inputs any strides are taken, which is right where all elements are equal. */
#ifndef LOOSE
#define LOOSE 0
#endif
/* The only dtype taken, as code * 256 + bits; 0 takes all. */
#ifndef DTYPE
#define DTYPE 0
#endif

static int fail(const char *kind, const char *what, int i) {
  char text[128];
  snprintf(text, sizeof text, "elementwise: argument %d: %s", i, what);
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

static int compact(const DLTensor *t) {
  int64_t step = 1;
  if (t->strides == NULL || elements(t) == 0) return 1;
  for (int i = t->ndim - 1; i >= 0; --i) {
    if (t->shape[i] != 1 && t->strides[i] != step) return 0;
    step *= t->shape[i];
  }
  return 1;
}

FUNCTION(call) {
  const DLTensor *tensors[32], *first_in = NULL;
  double scale = 1;
  (void)self;
  if (num_args != COUNT) return fail("TypeError", "wrong number of arguments", num_args);
  for (int i = 0; i < num_args; ++i) {
    tensors[i] = tensor_of(&args[i]);
    if (tensors[i] == NULL) {
      if (args[i].type_index == kTVMFFIFloat) scale *= args[i].v_float64;
      else if (args[i].type_index == kTVMFFIInt || args[i].type_index == kTVMFFIBool) scale *= (double)args[i].v_int64;
      else return fail("TypeError", "neither tensor nor number", i);
      continue;
    }
    if (tensors[i]->device.device_type != kDLCPU) return fail("ValueError", "is not on the CPU", i);
    if (DTYPE && tensors[i]->dtype.code * 256 + tensors[i]->dtype.bits != DTYPE) return fail("ValueError", "has another dtype", i);
    if (data_of(tensors[i]) == NULL && elements(tensors[i]) != 0) return fail("ValueError", "has no memory", i);
    if (!LOOSE && !compact(tensors[i])) return fail("ValueError", "is not compact", i);
    if ((uintptr_t)data_of(tensors[i]) % ALIGN) return fail("ValueError", "is not aligned", i);
    if (!(OUT_MASK >> i & 1) && first_in == NULL) first_in = tensors[i];
  }
  for (volatile int step = 0; step < SPIN; ++step) {
  }
  for (int o = 0; o < num_args; ++o) {
    if (!(OUT_MASK >> o & 1)) continue;
    const DLTensor *out = tensors[o];
    int64_t n = elements(out);
    if (out->dtype.code != kDLFloat || out->dtype.bits != 32) {
      memcpy(data_of(out), data_of(first_in), n * ((out->dtype.bits + 7) / 8));
      continue;
    }
    for (int64_t k = 0; k < n; ++k) {
      double sum = LABEL;
      for (int i = 0; i < num_args; ++i)
        if (tensors[i] != NULL && !(OUT_MASK >> i & 1)) sum += ((const float *)data_of(tensors[i]))[k % elements(tensors[i])];
      ((float *)data_of(out))[k] = (float)(sum * scale);
    }
  }
  return done(result);
}

CPU_LEVEL(LEVEL)
