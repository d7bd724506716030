/* A CUDA driver for tests of what is asked of it.
 *
 * Devices: LIBCUDA_DEVICES="8.6:82 9.0:132" (that is also the default), which CUDA_VISIBLE_DEVICES="1,0" numbers anew.
 * LIBCUDA_VERSION is what it offers, 13000 by default. A file named by LIBCUDA_LOG gets a letter a call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void log_call(char letter) {
  const char *path = getenv("LIBCUDA_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fputc(letter, file);
  fclose(file);
}

static int describe(int wanted, int *major, int *minor, int *count) {
  const char *text = getenv("LIBCUDA_DEVICES");
  if (!text) text = "8.6:82 9.0:132";
  for (int i = 0; text && sscanf(text, "%d.%d:%d", major, minor, count) == 3; i++) {
    if (i == wanted) return 1;
    text = strchr(text, ' ');
    if (text) text++;
  }
  return 0;
}

int cuInit(unsigned flags) { log_call('i'); return flags ? 1 : 0; }

int cuDriverGetVersion(int *version) {
  const char *text = getenv("LIBCUDA_VERSION");
  log_call('v');
  *version = text ? atoi(text) : 13000;
  return 0;
}

int cuDeviceGet(int *device, int ordinal) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  int real = ordinal, major, minor, count;
  if (visible) {
    for (int i = 0; i < ordinal && visible; i++) {
      visible = strchr(visible, ',');
      if (visible) visible++;
    }
    real = visible && *visible ? atoi(visible) : -1;
  }
  if (ordinal < 0 || real < 0 || !describe(real, &major, &minor, &count)) return 101;
  *device = 40 + real;
  return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, size, "Device %d", device);
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int major = 0, minor = 0, count = 0;
  log_call('a');
  if (!describe(device - 40, &major, &minor, &count)) return 101;
  if (attribute != 16 && attribute != 75 && attribute != 76 && attribute != 97) return 1;
  *value = attribute == 16 ? count : attribute == 75 ? major : attribute == 76 ? minor : 1000 * major;
  return 0;
}

int cuGetErrorName(int error, const char **name) {
  *name = error == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
