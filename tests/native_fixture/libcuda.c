/* A CUDA driver that knows two devices, for tests of what is asked of it: 8.6 and 9.0. */
int cuInit(unsigned flags) { return flags ? 1 : 0; }

int cuDeviceGet(int *device, int ordinal) {
  if (ordinal < 0 || ordinal > 1) return 101;
  *device = 40 + ordinal;
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  static const int capability[2][2] = {{8, 6}, {9, 0}};
  if (attribute != 75 && attribute != 76) return 1;
  *value = capability[device - 40][attribute - 75];
  return 0;
}

int cuGetErrorName(int error, const char **name) {
  *name = error == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
