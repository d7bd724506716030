/* What generated host code expects of TVM's runtime. C code reaches tlaot_lookup and tlaot_invoke through host.h's
 * macros; LLVM objects read weak pointer variables, which get their values here. */
#include "tlaot.h"

#include <stdlib.h>

/* Symbols below carry TVM's names; the version script keeps them inside. */
typedef int (*parallel_lambda)(int task_id, void *env, void *data);
int TVMBackendParallelLaunch(parallel_lambda lambda, void *data, int num_task);
int TVMBackendParallelBarrier(int task_id, void *env);

#ifdef TLAOT_CPU
const tlaot_function *tlaot_find(const char *name) {
  (void)name;
  return NULL;
}
#else
/* Host code of a CUDA target that runs loops in parallel on the CPU: in the calling thread. */
struct group_env {
  void *sync_handle;
  int32_t num_task;
};

TLAOT_HIDDEN int TVMBackendParallelLaunch(parallel_lambda lambda, void *data, int num_task) {
  struct group_env env = {NULL, 1};
  (void)num_task;
  return lambda(0, &env, data);
}

TLAOT_HIDDEN int TVMBackendParallelBarrier(int task_id, void *env) {
  (void)task_id, (void)env;
  return 0;
}
#endif

int tlaot_lookup(void *ctx, const char *name, void **out) {
  (void)ctx;
  *out = (void *)tlaot_find(name);
  if (*out) return 0;
  return tlaot_fail("RuntimeError", "%s: the generated host code calls %s, which tlaot does not provide",
                    tlaot_the_plan.kernel, name);
}

int tlaot_invoke(void *function, TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
  const tlaot_function *named = function;
  result->type_index = kTVMFFIInt; /* TileLang's tensor map functions answer a CUresult; here 0 or an error */
  result->zero_padding = 0;
  result->v_int64 = 0;
  return named->call(named, args, num_args);
}

TLAOT_HIDDEN void *TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t size, int code, int bits) {
  void *block = NULL;
  (void)device_id, (void)code, (void)bits;
  if (device_type != kDLCPU) {
    tlaot_fail("RuntimeError", "%s: device workspaces are not supported", tlaot_the_plan.kernel);
    return NULL;
  }
  if (posix_memalign(&block, 128, size ? size : 1) == 0) return block;
  tlaot_fail("MemoryError", "%s: no memory for a workspace of %llu bytes", tlaot_the_plan.kernel,
             (unsigned long long)size);
  return NULL;
}

TLAOT_HIDDEN int TVMBackendFreeWorkspace(int device_type, int device_id, void *block) {
  (void)device_type, (void)device_id;
  free(block);
  return 0;
}

/* Handles are pointers to constants: initialising one twice is harmless. */
static int handle_init_once(void **address, int (*init)(void **result)) {
  void *made = NULL;
  if (__atomic_load_n(address, __ATOMIC_ACQUIRE)) return 0;
  if (init(&made)) return -1;
  __atomic_store_n(address, made, __ATOMIC_RELEASE);
  return 0;
}

TLAOT_HIDDEN void *__TVMBackendParallelLaunch = (void *)TVMBackendParallelLaunch;
TLAOT_HIDDEN void *__TVMBackendParallelBarrier = (void *)TVMBackendParallelBarrier;
TLAOT_HIDDEN void *__TVMBackendAllocWorkspace = (void *)TVMBackendAllocWorkspace;
TLAOT_HIDDEN void *__TVMBackendFreeWorkspace = (void *)TVMBackendFreeWorkspace;
TLAOT_HIDDEN void *__TVMBackendGetFuncFromEnv = (void *)tlaot_lookup;
TLAOT_HIDDEN void *__TVMFFIEnvModLookupFromImports = (void *)tlaot_lookup;
TLAOT_HIDDEN void *__TVMFFIFunctionCall = (void *)tlaot_invoke;
TLAOT_HIDDEN void *__TVMFFIHandleInitOnce = (void *)handle_init_once;
TLAOT_HIDDEN void *__TVMFFIErrorSetRaisedFromCStr = (void *)TVMFFIErrorSetRaisedFromCStr;

/* Linked without the C runtime's start files; libc's pthread_atfork wants this. */
TLAOT_HIDDEN void *__dso_handle = &__dso_handle;
