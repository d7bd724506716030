/* An executable.so that fills its third argument, float32, with NaN. */
#include <string.h>

#include "executable.h"

FUNCTION(call) {
  const DLTensor *out = tensor_of(&args[2]);
  (void)self, (void)num_args;
  memset(data_of(out), 0xFF, 4 * elements(out));
  return done(result);
}

CPU_LEVEL(2)
