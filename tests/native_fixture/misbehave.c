/* A hand-written executable.so, B = 2 A, that takes SPIN microseconds and may go wrong: as the text in the file
 * $MISBEHAVE/<LABEL> says, at the call after it was written; or always as MODE says.
 *
 * s: SIGSEGV, a: abort, k: SIGKILL (as by the kernel when memory is out), h: hang, w: wrong, n: other bits at every call,
 * m: MemoryError, e: RuntimeError, x: exit.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "executable.h"

#ifndef SPIN
#define SPIN 100
#endif
#ifndef LABEL
#define LABEL 0
#endif
#ifndef MODE
#define MODE 0
#endif

static int mode(void) {
  char path[4096], first = 0;
  const char *folder = getenv("MISBEHAVE");
  if (MODE || folder == NULL) return MODE;
  snprintf(path, sizeof path, "%s/%d", folder, LABEL);
  int file = open(path, O_RDONLY);
  if (file < 0) return 0;
  if (read(file, &first, 1) != 1) first = 0;
  close(file);
  return first;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

FUNCTION(call) {
  static int calls;
  double start = now(), factor = 2;
  (void)self, (void)num_args;
  switch (mode()) {
    case 's': *(volatile int *)8 = 1; break;
    case 'a': abort();
    case 'k': kill(getpid(), SIGKILL); break;
    case 'x': _exit(3);
    case 'h': for (;;) pause();
    case 'w': factor = 3; break;
    case 'n': factor = 2 + (++calls % 16) * 1e-6; break;
    case 'm': TVMFFIErrorSetRaisedFromCStr("MemoryError", "no memory is left"); return -1;
    case 'e': TVMFFIErrorSetRaisedFromCStr("RuntimeError", "it would not"); return -1;
  }
  const float *in = data_of(tensor_of(&args[0]));
  float *out = data_of(tensor_of(&args[1]));
  int64_t count = elements(tensor_of(&args[1]));
  for (int64_t i = 0; i < count; ++i) out[i] = (float)(in[i] * factor);
  while (now() - start < SPIN) {}
  return done(result);
}

CPU_LEVEL(1)
