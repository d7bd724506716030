/* Included before generated host C: its calls of packed functions go to ours, by plain pointers, so that no FFI object is
 * made. */
#ifndef TLAOT_HOST_H_
#define TLAOT_HOST_H_

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#ifdef __cplusplus
extern "C" {
#endif
int tlaot_lookup(void *ctx, const char *name, void **out) __attribute__((visibility("hidden")));
int tlaot_invoke(void *function, TVMFFIAny *args, int32_t num_args, TVMFFIAny *result)
    __attribute__((visibility("hidden")));
#ifdef __cplusplus
}
#endif
#define TVMBackendGetFuncFromEnv tlaot_lookup
#define TVMFFIEnvModLookupFromImports tlaot_lookup
#define TVMFFIFunctionCall tlaot_invoke

#ifndef __cplusplus
/* Generated C reads a half-precision scalar as `(half)value` only to pass it on as a double. */
typedef double half;
#endif

#endif
