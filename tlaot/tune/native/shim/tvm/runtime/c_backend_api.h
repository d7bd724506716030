/* Stands in for TVM's header of this name: the calling convention of TVM's parallel loops and workspaces. */
#ifndef TVM_RUNTIME_C_BACKEND_API_H_
#define TVM_RUNTIME_C_BACKEND_API_H_
#include <tvm/runtime/base.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct {
  void *sync_handle;
  int32_t num_task;
} TVMParallelGroupEnv;
typedef int (*FTVMParallelLambda)(int task_id, TVMParallelGroupEnv *penv, void *cdata);
int TVMBackendParallelLaunch(FTVMParallelLambda flambda, void *cdata, int num_task);
int TVMBackendParallelBarrier(int task_id, TVMParallelGroupEnv *penv);
void *TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t nbytes, int dtype_code_hint,
                               int dtype_bits_hint);
int TVMBackendFreeWorkspace(int device_type, int device_id, void *ptr);
#ifdef __cplusplus
}
#endif
#endif
