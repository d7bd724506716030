/* Stands in for TVM's header of this name, so that generated host C compiles without TVM's tree. */
#ifndef TVM_RUNTIME_BASE_H_
#define TVM_RUNTIME_BASE_H_
#include <tvm/ffi/c_api.h>
#define TVM_DLL
#define TVM_DLL_EXPORT
#define TVM_RUNTIME_DLL
#define TVM_RUNTIME_DLL_EXPORT
#endif
