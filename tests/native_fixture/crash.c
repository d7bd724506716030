/* An executable.so whose call ends the process. */
#include <stdlib.h>

#include "executable.h"

FUNCTION(call) {
  (void)self, (void)args, (void)num_args, (void)result;
  abort();
}

CPU_LEVEL(2)
