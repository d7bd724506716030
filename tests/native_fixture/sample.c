/* Plain C stand-ins for the sample's CPU kernels, for tests of sample_pkg without a kernel compiler.
 * KERNEL is 0 (matmul), 1 (softmax) or 2 (rms_norm). No argument checks. */
#include <math.h>

#include "executable.h"

static float *matrix_of(const TVMFFIAny *arg, int64_t *rows, int64_t *columns) {
  const DLTensor *t = tensor_of(arg);
  *rows = t->ndim == 2 ? t->shape[0] : 1;
  *columns = t->shape[t->ndim - 1];
  return data_of(t);
}

FUNCTION(call) {
  int64_t m, n, k, one;
  (void)self;
  float *out = matrix_of(&args[num_args - 1], &m, &n), *a = matrix_of(&args[0], &m, &k), *b = matrix_of(&args[1], &one, &n);
  for (int64_t i = 0; i < m; ++i) {
    double sum = 0, most = -INFINITY;
    for (int64_t j = 0; j < k; ++j) {
      if (a[i * k + j] > most) most = a[i * k + j];
      sum += KERNEL == 2 ? (double)a[i * k + j] * a[i * k + j] : 0;
    }
    for (int64_t j = 0; KERNEL == 1 && j < k; ++j) sum += exp(a[i * k + j] - most);
    for (int64_t j = 0; j < n; ++j) {
      double value = 0;
      if (KERNEL == 0)
        for (int64_t l = 0; l < k; ++l) value += (double)a[i * k + l] * b[l * n + j];
      if (KERNEL == 1) value = exp(a[i * k + j] - most) / sum;
      if (KERNEL == 2) value = a[i * k + j] / sqrt(sum / k + 1e-6) * b[j];
      out[i * n + j] = (float)value;
    }
  }
  return done(result);
}

CPU_LEVEL(3)
