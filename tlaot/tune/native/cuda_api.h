/* The part of the CUDA driver API that cuda.c calls, declared here so that building needs no cuda.h.
 *
 * Names, values and layouts are those of the driver's stable ABI (CUDA Driver API reference, 12.0 and later);
 * functions that have a newer version behind an old name carry their real symbol. */
#ifndef TLAOT_CUDA_API_H_
#define TLAOT_CUDA_API_H_

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;

typedef struct {
  _Alignas(64) uint64_t opaque[16];
} CUtensorMap;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
  CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY = 224,
  CUDA_ERROR_INVALID_SOURCE = 300,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, /* between the two, other errors of a capture */
};

enum {
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
  CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
};
enum {
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE = 108,
  CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE = 109,
};
enum { CU_JIT_ERROR_LOG_BUFFER = 5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6 };
enum { CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6 };
enum { CU_ACCESS_PROPERTY_NORMAL = 0, CU_ACCESS_PROPERTY_STREAMING = 1, CU_ACCESS_PROPERTY_PERSISTING = 2 };
enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 };

enum {
  CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW = 1,
  CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
  CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

typedef struct {
  void *base_ptr;
  size_t num_bytes;
  float hitRatio;
  int hitProp;
  int missProp;
} CUaccessPolicyWindow;

typedef union {
  char pad[64];
  CUaccessPolicyWindow accessPolicyWindow;
  int cooperative;
  struct {
    unsigned int x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
} CUlaunchAttributeValue;

typedef struct {
  int id;
  char pad[8 - sizeof(int)];
  CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct {
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute *attrs;
  unsigned int numAttrs;
} CUlaunchConfig;

_Static_assert(sizeof(CUtensorMap) == 128, "a tensor map is 128 bytes");
_Static_assert(sizeof(CUlaunchAttribute) == 72, "as in cuda.h");
_Static_assert(sizeof(CUlaunchConfig) == 56, "as in cuda.h");

/* X(name, symbol, parameters) */
#define TLAOT_CUDA_FUNCTIONS(X)                                                                                      \
  X(Init, "cuInit", (unsigned int flags))                                                                            \
  X(DriverGetVersion, "cuDriverGetVersion", (int *version))                                                          \
  X(GetErrorName, "cuGetErrorName", (CUresult error, const char **text))                                             \
  X(GetErrorString, "cuGetErrorString", (CUresult error, const char **text))                                         \
  X(DeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                                                      \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device))                        \
  X(DeviceGetName, "cuDeviceGetName", (char *name, int size, CUdevice device))                                       \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                      \
  X(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext * context))                                                         \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context))                                                      \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext * context))                                                      \
  X(CtxGetLimit, "cuCtxGetLimit", (size_t * value, int limit))                                                       \
  X(CtxSetLimit, "cuCtxSetLimit", (int limit, size_t value))                                                         \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode))                               \
  X(LibraryLoadData, "cuLibraryLoadData",                                                                            \
    (CUlibrary * library, const void *code, int *jit_options, void **jit_values, unsigned int num_jit_options,       \
     int *options, void **values, unsigned int num_options))                                                         \
  X(LibraryGetKernel, "cuLibraryGetKernel", (CUkernel * kernel, CUlibrary library, const char *name))                \
  X(KernelGetFunction, "cuKernelGetFunction", (CUfunction * function, CUkernel kernel))                              \
  X(KernelSetAttribute, "cuKernelSetAttribute", (int attribute, int value, CUkernel kernel, CUdevice device))        \
  X(LaunchKernelEx, "cuLaunchKernelEx",                                                                              \
    (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))                                \
  X(TensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                                  \
    (CUtensorMap * map, int type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides,       \
     const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int promotion, int fill))    \
  X(TensorMapEncodeIm2col, "cuTensorMapEncodeIm2col",                                                                \
    (CUtensorMap * map, int type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides,       \
     const int *lower, const int *upper, uint32_t channels, uint32_t pixels, const uint32_t *element_strides,        \
     int interleave, int swizzle, int promotion, int fill))

#endif
