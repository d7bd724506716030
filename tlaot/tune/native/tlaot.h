/* What the fixed C sources of an executable.so share with the plan.c that link.py generates for each kernel.
 *
 * An executable.so is: entry.c (argument checks), backend.c (what generated host code expects of TVM's runtime), pool.c
 * (CPU targets) or cuda.c (CUDA targets), plan.c, and the frontend's host code. Only the entry points are exported. */
#ifndef TLAOT_H_
#define TLAOT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tvm/ffi/c_api.h>

#define TLAOT_HIDDEN __attribute__((visibility("hidden")))
#define TLAOT_EXPORT __attribute__((visibility("default"), used))
#define TLAOT_MAX_DEVICES 128

/* A size or a stride: the number itself, or (symbol >= 0) the index of a symbolic size. */
typedef struct {
  int64_t value;
  int32_t symbol;
} tlaot_extent;

typedef struct {
  const char *name;
  const tlaot_extent *shape;
  const tlaot_extent *strides; /* NULL: compact, row-major */
  uint32_t align;              /* bytes that the code assumes of the first element's address */
  int16_t ndim;                /* -1: a scalar */
  uint16_t lanes;
  uint8_t code;
  uint8_t bits;
  bool written;
  bool narrow; /* the code addresses its elements with 32 bits */
  bool optional; /* the code never looks at it: None may be passed */
} tlaot_param;

typedef struct {
  const char *kernel;
  const char *target; /* as text, for messages */
  const tlaot_param *params;
  const char *const *symbols;
  int32_t num_params;
  int32_t num_symbols;
  int32_t num_dims; /* of all tensors together */
  int32_t device_type; /* DLPack */
  int32_t cpu_rank;    /* 1..4; 0 for CUDA */
} tlaot_plan;

/* Codes of what follows the arguments in the host's call of a device function. */
enum { TLAOT_GRID_X = 0, TLAOT_BLOCK_X = 3, TLAOT_CLUSTER_X = 6, TLAOT_DYN_SHARED = 9 };

enum {
  TLAOT_ARG_PTR = 0,
  TLAOT_ARG_TENSORMAP,
  TLAOT_ARG_INT,   /* any integer or bool, `width` bytes */
  TLAOT_ARG_FLOAT, /* float32, float64, float16 by `width` */
  TLAOT_ARG_BFLOAT16,
};

typedef struct {
  uint8_t kind;
  uint8_t width;
  uint16_t align;
} tlaot_arg;

/* A function that generated host code calls by name; `call` gets the function itself as its first argument. */
typedef struct tlaot_function tlaot_function;
struct tlaot_function {
  int (*call)(const tlaot_function *self, const TVMFFIAny *args, int32_t num_args);
};

typedef struct {
  tlaot_function function;
  const char *name;
  const tlaot_arg *args;
  const uint8_t *launch;
  int16_t num_args;
  int16_t num_launch;
  bool cooperative;
  bool pdl;
  int32_t dyn_shared; /* bytes of dynamic shared memory of every launch; -1: they depend on a size */
} tlaot_device_kernel;

/* What a process learned about one device function; guarded by cuda.c's lock except `handle`. */
typedef struct {
  void *handle;
  int32_t shared[TLAOT_MAX_DEVICES]; /* bytes allowed so far; 0: nothing asked yet */
  bool big_cluster[TLAOT_MAX_DEVICES];
  bool compiled[TLAOT_MAX_DEVICES]; /* the driver has it on the device, compiled where it is PTX */
} tlaot_kernel_state;

/* Generated. */
extern const tlaot_plan tlaot_the_plan TLAOT_HIDDEN;
int32_t tlaot_host(TVMFFIAny *args, const int64_t *sizes) TLAOT_HIDDEN;
extern const tlaot_device_kernel tlaot_kernels[] TLAOT_HIDDEN;
extern tlaot_kernel_state tlaot_kernel_states[] TLAOT_HIDDEN;
extern const int32_t tlaot_num_kernels TLAOT_HIDDEN;
extern const unsigned char tlaot_image[] TLAOT_HIDDEN;
extern const unsigned char tlaot_image_end[] TLAOT_HIDDEN;

/* entry.c */
int tlaot_fail(const char *kind, const char *format, ...) TLAOT_HIDDEN __attribute__((format(printf, 2, 3)));

/* backend.c, and cuda.c */
int tlaot_launch(const tlaot_function *self, const TVMFFIAny *args, int32_t num_args) TLAOT_HIDDEN;
const tlaot_function *tlaot_find(const char *name) TLAOT_HIDDEN;
int tlaot_lookup(void *ctx, const char *name, void **out) TLAOT_HIDDEN;
int tlaot_invoke(void *function, TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) TLAOT_HIDDEN;

/* cuda.c: make `device` current around the host code. */
int tlaot_device_enter(int32_t device, bool *pushed) TLAOT_HIDDEN;
void tlaot_device_leave(bool pushed) TLAOT_HIDDEN;

/* Symbols that glibc 2.34 moved between libraries are bound to their old versions, so that what a new system links
 * an older one loads. */
#if defined(__x86_64__)
#define TLAOT_OLD_GLIBC(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
#elif defined(__aarch64__)
#define TLAOT_OLD_GLIBC(name) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#else
#define TLAOT_OLD_GLIBC(name) struct tlaot_unused
#endif

#endif
