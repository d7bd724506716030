/* NVML as far as nvml.py asks it: what it answers is in the file $FAKE_NVML, read anew at each question: the utilisation in percent,
 * then a "pid share" for each process. "-" in place of the utilisation: the driver does not say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } Use;

static int device;

static int read_file(char *utilisation, unsigned *pids, unsigned *shares) {
  const char *path = getenv("FAKE_NVML");
  FILE *file = path ? fopen(path, "r") : NULL;
  int count = 0;
  if (file == NULL) return -1;
  if (fscanf(file, "%15s", utilisation) != 1) utilisation[0] = 0;
  while (count < 16 && fscanf(file, "%u %u", &pids[count], &shares[count]) == 2) ++count;
  fclose(file);
  return count;
}

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
  *out = &device;
  return strcmp(uuid, "GPU-1") == 0 ? 0 : 6;
}

int nvmlDeviceGetUtilizationRates(void *handle, Rates *rates) {
  char text[16];
  unsigned pids[16], shares[16];
  if (handle != &device || read_file(text, pids, shares) < 0 || text[0] == '-') return 3;
  rates->gpu = (unsigned)atoi(text);
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *room, Process *processes) {
  char text[16];
  unsigned pids[16], shares[16];
  int count = read_file(text, pids, shares);
  if (handle != &device || count < 0) return 3;
  if ((int)*room < count) return 7;
  for (int i = 0; i < count; ++i) processes[i] = (Process){pids[i], 1 << 20, ~0u, ~0u};
  *room = (unsigned)count;
  return 0;
}

int nvmlDeviceGetProcessUtilization(void *handle, Use *uses, unsigned *room, unsigned long long since) {
  char text[16];
  unsigned pids[16], shares[16];
  int count = read_file(text, pids, shares);
  if (handle != &device || count <= 0 || text[0] == '-') return 6;
  for (int i = 0; i < count; ++i) uses[i] = (Use){pids[i], since + 1000, shares[i], 1, 0, 0};
  uses[count] = (Use){4242, since - 1000, 99, 0, 0, 0}; /* older than what was asked for */
  *room = (unsigned)count + 1;
  return 0;
}
