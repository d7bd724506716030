/* The way of a call from Python into an executable.so, for arguments of frameworks with DLPack's exchange API (torch), for those
 * with numpy's array interface, and numbers.
 *
 * A Direct stands between the user and the Python side of a kernel. It holds what that side has decided so far: for these types,
 * dtypes, sizes and this device, this function, and these outputs to allocate. A call that one of them fits goes straight to
 * the function, with plain DLTensors on the stack; any other, and any that is unusual in some way, goes to the Python side as
 * it came, which answers it and may add to what is known. So nothing here decides and nothing here words an error.
 *
 * All state is in the object and guarded by the interpreter's lock, which is given back while the function runs. Sizes are
 * copied before that: another thread may resize a tensor. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "python_api.h"
#include "tlaot.h"

TLAOT_OLD_GLIBC(memcpy);

#define MOST_ARGS 64
#define MOST_DIMS 16  /* of one tensor */
#define MOST_KINDS 16 /* types of arguments that one kernel is called with */
#define MOST_ENTRIES 4096
#define MOST_RANGES 256
#define MOST_BINDINGS 16
#define MOST_POOL 512

/* What a type's instances are. */
typedef enum { EXCHANGED = 0, INTEGER = 1, REAL = 2, TRUTH = 3, ARRAY = 4 } form;

/* numpy's "array interface protocol", the C side of it: what __array_struct__ is a capsule of. */
typedef struct {
  int two;
  int ndim;
  char kind;
  int itemsize;
  int flags;
  Py_ssize_t *shape, *strides; /* in bytes */
  void *data;
} array_interface;

enum { NOT_SWAPPED = 0x200, WRITEABLE = 0x400 };

/* How to read arguments of one type. */
typedef struct {
  PyTypeObject *type; /* owned */
  const DLPackExchangeAPI *api;
  form form;
  bool torch;
} kind;

typedef struct {
  int64_t low, high; /* the sizes taken, both included */
  int32_t arg, dim;  /* an earlier argument's size that it must equal; arg -1: none */
} range;

typedef struct {
  uint8_t kind;
  int16_t ndim; /* -1: a scalar */
  int16_t param;
  bool strided; /* strides must be these */
  bool written;
  DLDataType dtype;
  int32_t first; /* position of its first size among the entry's */
} expected;

/* A size of an output: a number, a size of an argument, or an integer argument. */
typedef struct {
  int32_t arg; /* -1: `value` */
  int32_t dim; /* -1: the argument itself */
  int64_t value;
} source;

typedef struct {
  int16_t param, ndim;
  bool constant;     /* `call` is whole: its sizes are numbers */
  PyObject *call;    /* arguments for `make`, or None in their place; owned */
  PyObject *make;    /* owned */
  PyObject *second;  /* what goes to it after the sizes; None: strides; owned */
  PyObject *kwargs;  /* or None; owned */
  const source *sizes;
} output;

typedef struct {
  uint64_t hash;
  uint64_t calls;
  PyObject *function; /* the FFI's object that keeps `handle`; owned */
  void *handle;
  int32_t num_args, num_params, num_outputs, num_results, num_sizes;
  DLDevice device;
  expected *args;
  range *ranges;
  int64_t *strides;
  output *outputs;
  source *sources;
  int32_t *results; /* positions of what is returned: below num_params of arguments by parameter */
  int64_t id;
  int busy;     /* calls that are using it */
  bool dropped; /* forgotten meanwhile: the last of them frees it */
} entry;

/* A caller for factory arguments that are named at the call. */
typedef struct {
  PyObject *names, *values; /* tuples; owned */
  PyObject *target;         /* owned */
} binding;

typedef struct {
  PyObject head;
  PyObject *slow, *fail; /* the Python side: slow(args, kwargs or None), fail(args, kind, message) */
  PyObject *wants_gradient, *array_struct, *grad_enabled, *is_negative;
  PyCFunction fast_grad_enabled, fast_is_negative;
  kind kinds[MOST_KINDS];
  int num_kinds;
  entry *last;
  entry **table; /* by hash, open addressing; a power of two */
  int capacity, num_entries;
  entry *open[MOST_RANGES]; /* those that take ranges of sizes */
  int num_open;
  binding bindings[MOST_BINDINGS];
  int num_bindings;
} Direct;

/* What one call brought. */
typedef struct {
  int num_args;
  uint8_t kinds[MOST_ARGS];
  DLTensor tensors[MOST_ARGS];
  int64_t scalars[MOST_ARGS];
  bool read_only[MOST_ARGS];
  int64_t pool[MOST_POOL]; /* sizes and strides of arrays */
  int used;
  const DLTensor *first; /* the first tensor: it tells the device */
  const DLPackExchangeAPI *api;
} brought;

static void free_entry(entry *e) {
  if (!e) return;
  for (int i = 0; e->outputs && i < e->num_outputs; i++) {
    Py_DecRef(e->outputs[i].call);
    Py_DecRef(e->outputs[i].make);
    Py_DecRef(e->outputs[i].second);
    Py_DecRef(e->outputs[i].kwargs);
  }
  Py_DecRef(e->function);
  free(e->args);
  free(e->ranges);
  free(e->strides);
  free(e->outputs);
  free(e->sources);
  free(e->results);
  free(e);
}

static void drop_entry(entry *e) {
  if (e && e->busy) e->dropped = true;
  else free_entry(e);
}

static void forget(Direct *self) {
  entry **table = self->table;
  int capacity = self->capacity, num_open = self->num_open;
  entry *open[MOST_RANGES];
  memcpy(open, self->open, sizeof open);
  self->last = NULL;
  self->table = NULL;
  self->capacity = self->num_entries = self->num_open = 0;
  for (int i = 0; i < capacity; i++) drop_entry(table[i]);
  for (int i = 0; i < num_open; i++) drop_entry(open[i]);
  free(table);
}

/* Reading arguments */

static int find_kind(const Direct *self, const PyTypeObject *type) {
  for (int i = 0; i < self->num_kinds; i++)
    if (self->kinds[i].type == type) return i;
  return -1;
}

static bool is_compact(const DLTensor *tensor) {
  int64_t step = 1;
  for (int d = tensor->ndim - 1; d >= 0; d--) {
    if (tensor->shape[d] != 1 && tensor->strides[d] != step) return false;
    step *= tensor->shape[d];
  }
  return step > 1;
}

/* Whether a tensor of torch is one that must not be taken as it lies in memory: 0 no, 1 yes, -1 with an error set. */
static int is_special(const Direct *self, PyObject *x, const DLTensor *tensor, bool gradients) {
  PyObject *answer;
  if (gradients) {
    answer = PyObject_GetAttr(x, self->wants_gradient);
    if (!answer) return -1;
    Py_DecRef(answer);
    if (answer != Py_False) return 1;
  }
  /* A lazily negated view is the imaginary part of a conjugated one: of a real dtype, every second element of something. To ask
   * takes and returns the interpreter's lock. */
  if (tensor->dtype.code != kDLFloat || is_compact(tensor)) return 0;
  answer = self->fast_is_negative ? self->fast_is_negative(x, NULL) : PyObject_CallFunctionObjArgs(self->is_negative, x, NULL);
  if (!answer) return -1;
  Py_DecRef(answer);
  return answer != Py_False;
}

static int gradients_enabled(const Direct *self) {
  PyObject *answer = self->fast_grad_enabled ? self->fast_grad_enabled(NULL, NULL) : PyObject_CallObject(self->grad_enabled, NULL);
  if (!answer) return -1;
  Py_DecRef(answer);
  return answer != Py_False;
}

static bool read_exchanged(const Direct *self, const kind *k, PyObject *x, DLTensor *out, int *gradients) {
  if (k->api->dltensor_from_py_object_no_sync(x, out) || out->ndim > MOST_DIMS || (out->ndim && !out->strides)) return false;
  if (!k->torch) return true;
  if (*gradients < 0) *gradients = gradients_enabled(self);
  return *gradients >= 0 && is_special(self, x, out, *gradients) == 0;
}

static bool read_dtype(const array_interface *array, DLDataType *out) {
  static const char letters[] = "iufcb";
  static const uint8_t codes[] = {kDLInt, kDLUInt, kDLFloat, kDLComplex, kDLBool};
  for (int i = 0; letters[i]; i++) {
    if (letters[i] != array->kind) continue;
    *out = (DLDataType){codes[i], (uint8_t)(8 * array->itemsize), 1};
    return array->itemsize > 0 && array->itemsize <= 16;
  }
  return false; /* also what another package registered: of it the interface tells no more than its size */
}

static bool read_interface(const array_interface *array, brought *call, DLTensor *out, bool *read_only) {
  if (!array || array->two != 2 || !(array->flags & NOT_SWAPPED) || array->ndim > MOST_DIMS || !read_dtype(array, &out->dtype) ||
      call->used + 2 * array->ndim > MOST_POOL)
    return false;
  *read_only = !(array->flags & WRITEABLE);
  out->data = array->data;
  out->device = (DLDevice){kDLCPU, 0};
  out->ndim = array->ndim;
  out->byte_offset = 0;
  out->shape = call->pool + call->used;
  out->strides = out->shape + array->ndim;
  call->used += 2 * array->ndim;
  for (int d = 0; d < array->ndim; d++) {
    if (array->strides[d] % array->itemsize) return false;
    out->shape[d] = array->shape[d];
    out->strides[d] = array->strides[d] / array->itemsize;
  }
  return true;
}

static bool read_array(const Direct *self, PyObject *x, brought *call, DLTensor *out, bool *read_only) {
  PyObject *capsule = PyObject_GetAttr(x, self->array_struct);
  if (!capsule) return false;
  /* The memory is the array's, and there as long as that. */
  bool read = read_interface(PyCapsule_GetPointer(capsule, NULL), call, out, read_only);
  Py_DecRef(capsule);
  return read;
}

static bool read_argument(const Direct *self, const kind *k, PyObject *x, brought *call, int i, int *gradients) {
  double real;
  call->tensors[i].ndim = -1;
  call->read_only[i] = false;
  switch (k->form) {
    case EXCHANGED:
    case ARRAY:
      if (!(k->form == ARRAY ? read_array(self, x, call, &call->tensors[i], &call->read_only[i])
                             : read_exchanged(self, k, x, &call->tensors[i], gradients)))
        return false;
      if (call->first) return true;
      call->first = &call->tensors[i];
      call->api = k->api;
      return true;
    case TRUTH: call->scalars[i] = x == Py_True; return true;
    case INTEGER: call->scalars[i] = PyLong_AsLongLong(x); return call->scalars[i] != -1 || !PyErr_Occurred();
    case REAL:
      real = PyFloat_AsDouble(x);
      memcpy(&call->scalars[i], &real, sizeof real);
      return true;
  }
  return false;
}

/* Whether all arguments are of known types and usual; an error that was set on the way is cleared: Python will meet it again. */
static bool read_arguments(const Direct *self, PyObject *args, brought *call) {
  int gradients = -1;
  Py_ssize_t count = PyTuple_Size(args);
  if (count > MOST_ARGS) return false;
  call->num_args = (int)count;
  call->first = NULL;
  call->api = NULL;
  call->used = 0;
  for (int i = 0; i < call->num_args; i++) {
    PyObject *x = PyTuple_GetItem(args, i);
    int found = find_kind(self, x->type);
    if (found < 0) return false;
    call->kinds[i] = (uint8_t)found;
    if (!read_argument(self, &self->kinds[found], x, call, i, &gradients)) {
      PyErr_Clear();
      return false;
    }
  }
  return call->first != NULL;
}

/* Finding what was decided */

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 29;
}

static uint64_t dtype_bits(DLDataType dtype) { return (uint64_t)dtype.code << 24 | (uint64_t)dtype.bits << 16 | dtype.lanes; }

static uint64_t hash_call(const brought *call) {
  uint64_t hash = mix((uint64_t)call->first->device.device_type << 32 | (uint32_t)call->first->device.device_id, call->num_args);
  for (int i = 0; i < call->num_args; i++) {
    const DLTensor *tensor = &call->tensors[i];
    hash = mix(hash, call->kinds[i]);
    if (tensor->ndim < 0) continue;
    hash = mix(hash, dtype_bits(tensor->dtype));
    for (int d = 0; d < tensor->ndim; d++) hash = mix(hash, (uint64_t)tensor->shape[d]);
  }
  return hash;
}

static bool fits_tensor(const entry *e, const expected *want, const brought *call, const DLTensor *tensor) {
  if (tensor->ndim != want->ndim || dtype_bits(tensor->dtype) != dtype_bits(want->dtype)) return false;
  const range *ranges = e->ranges + want->first;
  for (int d = 0; d < want->ndim; d++) {
    int64_t size = tensor->shape[d];
    if (size < ranges[d].low || size > ranges[d].high) return false;
    if (ranges[d].arg >= 0 && size != call->tensors[ranges[d].arg].shape[ranges[d].dim]) return false;
  }
  return !want->strided || memcmp(tensor->strides, e->strides + want->first, sizeof(int64_t) * (size_t)want->ndim) == 0;
}

static bool fits(const entry *e, const brought *call) {
  if (e->num_args != call->num_args || e->device.device_type != call->first->device.device_type ||
      e->device.device_id != call->first->device.device_id)
    return false;
  for (int i = 0; i < call->num_args; i++) {
    const expected *want = &e->args[i];
    if (want->kind != call->kinds[i] || (want->written && call->read_only[i])) return false;
    if (want->ndim >= 0 && !fits_tensor(e, want, call, &call->tensors[i])) return false;
  }
  return true;
}

static entry *look_up(const Direct *self, uint64_t hash, const brought *call) {
  if (!self->capacity) return NULL;
  for (int at = (int)(hash & (uint64_t)(self->capacity - 1)); self->table[at]; at = (at + 1) & (self->capacity - 1))
    if (self->table[at]->hash == hash && fits(self->table[at], call)) return self->table[at];
  return NULL;
}

/* Decisions for single sizes go before those for ranges: the Python side gives ranges that leave out what is decided otherwise,
 * but it may also have learned of one size what it did not know of the range. */
static entry *find_entry(Direct *self, const brought *call) {
  entry *found = self->last;
  if (found && fits(found, call)) return found;
  found = look_up(self, hash_call(call), call);
  for (int i = 0; !found && i < self->num_open; i++)
    if (fits(self->open[i], call)) found = self->open[i];
  if (found) self->last = found;
  return found;
}

/* Outputs */

static int64_t size_of(const source *s, const brought *call) {
  if (s->arg < 0) return s->value;
  return s->dim < 0 ? call->scalars[s->arg] : call->tensors[s->arg].shape[s->dim];
}

/* The sizes, and what goes with them: by default the strides of a compact tensor. */
static PyObject *pack_sizes(const output *out, const brought *call) {
  bool strided = out->second == Py_None;
  PyObject *pair = PyTuple_New(2), *sizes = PyTuple_New(out->ndim), *strides = PyTuple_New(strided ? out->ndim : 0);
  int64_t step = 1;
  bool whole = pair && sizes && strides;
  for (int d = out->ndim - 1; whole && d >= 0; d--) {
    int64_t size = size_of(&out->sizes[d], call);
    PyObject *size_object = PyLong_FromLongLong(size), *step_object = strided ? PyLong_FromLongLong(step) : NULL;
    step *= size > 1 ? size : 1;
    whole = size_object && (step_object || !strided);
    PyTuple_SetItem(sizes, d, size_object);
    if (strided) PyTuple_SetItem(strides, d, step_object);
  }
  if (!whole) {
    Py_DecRef(pair);
    Py_DecRef(sizes);
    Py_DecRef(strides);
    return NULL;
  }
  if (!strided) {
    Py_DecRef(strides);
    Py_IncRef(strides = out->second);
  }
  PyTuple_SetItem(pair, 0, sizes);
  PyTuple_SetItem(pair, 1, strides);
  return pair;
}

/* A new tensor in `objects[param]`, described in `tensor`; false for anything unexpected. */
static bool allocate(const Direct *self, const output *out, brought *call, PyObject **objects, DLTensor *tensor) {
  bool read_only;
  objects[out->param] = NULL;
  PyObject *args = out->constant ? out->call : pack_sizes(out, call);
  if (!args) return false;
  PyObject *made = PyObject_Call(out->make, args, out->kwargs == Py_None ? NULL : out->kwargs);
  if (!out->constant) Py_DecRef(args);
  objects[out->param] = made;
  if (!made) return false;
  int found = find_kind(self, made->type);
  /* Another type comes where torch is told to make other tensors, by a mode for instance. */
  if (found < 0 || self->kinds[found].api != call->api) return false;
  return call->api ? call->api->dltensor_from_py_object_no_sync(made, tensor) == 0
                   : self->kinds[found].form == ARRAY && read_array(self, made, call, tensor, &read_only);
}

/* Running */

static PyObject *ask_slow(Direct *self, PyObject *args, PyObject *kwargs) {
  PyErr_Clear();
  return PyObject_CallFunctionObjArgs(self->slow, args, kwargs ? kwargs : Py_None, NULL);
}

static PyObject *report(Direct *self, PyObject *args) {
  TVMFFIObjectHandle error = NULL;
  if (PyErr_Occurred()) return NULL; /* of Python code that the function called */
  const char *kind = "RuntimeError", *message = "the kernel failed and does not say why";
  size_t kind_size = strlen(kind), message_size = strlen(message);
  TVMFFIErrorMoveFromRaised(&error);
  if (error) {
    const TVMFFIErrorCell *cell = (const TVMFFIErrorCell *)((const char *)error + sizeof(TVMFFIObject));
    kind = cell->kind.data, kind_size = cell->kind.size;
    message = cell->message.data, message_size = cell->message.size;
  }
  PyObject *kind_object = PyUnicode_DecodeUTF8(kind, (Py_ssize_t)kind_size, "replace");
  PyObject *message_object = PyUnicode_DecodeUTF8(message, (Py_ssize_t)message_size, "replace");
  if (error) TVMFFIObjectDecRef(error);
  PyObject *answer = kind_object && message_object
                         ? PyObject_CallFunctionObjArgs(self->fail, args, kind_object, message_object, NULL)
                         : NULL;
  Py_DecRef(kind_object);
  Py_DecRef(message_object);
  return answer;
}

static PyObject *results_of(const entry *e, PyObject **objects) {
  if (e->num_results == 0) {
    Py_IncRef(Py_None);
    return Py_None;
  }
  if (e->num_results == 1) {
    Py_IncRef(objects[e->results[0]]);
    return objects[e->results[0]];
  }
  PyObject *list = PyList_New(e->num_results);
  for (int i = 0; list && i < e->num_results; i++) {
    Py_IncRef(objects[e->results[i]]);
    PyList_SetItem(list, i, objects[e->results[i]]);
  }
  return list;
}

/* On the device's current stream of the framework, without the interpreter's lock, as the FFI's own call. */
static int run(const brought *call, void *handle, TVMFFIAny *packed, int num_params) {
  DLDevice device = call->first->device;
  void *stream = NULL, *former = NULL;
  bool streamed = device.device_type != kDLCPU && call->api && call->api->current_work_stream;
  if (streamed && call->api->current_work_stream(device.device_type, device.device_id, &stream)) {
    PyErr_Clear();
    streamed = false;
  }
  if (streamed && TVMFFIEnvSetStream(device.device_type, device.device_id, stream, &former)) return -1;
  TVMFFIAny result = {.type_index = kTVMFFINone};
  PyThreadState *state = PyEval_SaveThread();
  int status = TVMFFIFunctionCall(handle, packed, num_params, &result);
  PyEval_RestoreThread(state);
  if (streamed && former != stream) TVMFFIEnvSetStream(device.device_type, device.device_id, former, NULL);
  return status;
}

static void pack_argument(TVMFFIAny *packed, form form, DLTensor *tensor, int64_t scalar) {
  static const int32_t types[] = {kTVMFFIDLTensorPtr, kTVMFFIInt, kTVMFFIFloat, kTVMFFIBool, kTVMFFIDLTensorPtr};
  packed->type_index = types[form];
  packed->zero_padding = 0;
  packed->v_int64 = scalar; /* a float's bits */
  if (form == EXCHANGED || form == ARRAY) packed->v_ptr = tensor;
}

/* Sizes and strides as they are now: the tensor is another's, who may resize it while the function runs. */
static int64_t *keep_sizes(DLTensor *tensor, int64_t *kept) {
  size_t bytes = sizeof(int64_t) * (size_t)tensor->ndim;
  if (!bytes) return kept;
  memcpy(kept, tensor->shape, bytes);
  memcpy(kept + tensor->ndim, tensor->strides, bytes);
  tensor->shape = kept;
  tensor->strides = kept + tensor->ndim;
  return kept + 2 * tensor->ndim;
}

static PyObject *run_entry(Direct *self, entry *e, PyObject *args, brought *call) {
  TVMFFIAny packed[e->num_params];
  PyObject *objects[e->num_params];
  DLTensor made[e->num_outputs + 1];
  int64_t sizes[2 * e->num_sizes + 1], *free_sizes = sizes;
  int num_made = 0;
  bool whole = true;
  PyObject *answer = NULL, *function = e->function;
  for (int i = 0; i < call->num_args; i++) {
    const expected *want = &e->args[i];
    objects[want->param] = PyTuple_GetItem(args, i);
    if (want->ndim >= 0) free_sizes = keep_sizes(&call->tensors[i], free_sizes);
    pack_argument(&packed[want->param], self->kinds[want->kind].form, &call->tensors[i], call->scalars[i]);
  }
  /* What is allocated may run Python, and with it another thread, which may forget this entry. */
  const output *outputs = e->outputs;
  Py_IncRef(function);
  e->busy++;
  for (; whole && num_made < e->num_outputs; num_made++) {
    const output *out = &outputs[num_made];
    whole = allocate(self, out, call, objects, &made[num_made]);
    if (whole) free_sizes = keep_sizes(&made[num_made], free_sizes);
    pack_argument(&packed[out->param], EXCHANGED, &made[num_made], 0);
  }
  if (!whole)
    answer = ask_slow(self, args, NULL);
  else if (run(call, e->handle, packed, e->num_params))
    answer = report(self, args);
  else
    e->calls++, answer = results_of(e, objects);
  for (int i = 0; i < num_made; i++)
    if (objects[outputs[i].param]) Py_DecRef(objects[outputs[i].param]);
  Py_DecRef(function);
  if (--e->busy == 0 && e->dropped) free_entry(e);
  return answer;
}

/* The caller for named factory arguments; values are told apart by identity, others than these the Python side looks up. */
static PyObject *find_binding(const Direct *self, PyObject *kwargs, Py_ssize_t count) {
  for (int i = 0; i < self->num_bindings; i++) {
    const binding *b = &self->bindings[i];
    if (PyTuple_Size(b->names) != count) continue;
    Py_ssize_t at = 0;
    while (at < count && PyDict_GetItem(kwargs, PyTuple_GetItem(b->names, at)) == PyTuple_GetItem(b->values, at)) at++;
    if (at == count) return b->target;
  }
  return NULL;
}

static PyObject *call_direct(PyObject *object, PyObject *args, PyObject *kwargs) {
  Direct *self = (Direct *)object;
  Py_ssize_t named = kwargs ? PyDict_Size(kwargs) : 0;
  if (named) {
    PyObject *target = find_binding(self, kwargs, named);
    if (!target) return ask_slow(self, args, kwargs);
    Py_IncRef(target);
    PyObject *answer = PyObject_Call(target, args, NULL);
    Py_DecRef(target);
    return answer;
  }
  brought call;
  if (!read_arguments(self, args, &call)) return ask_slow(self, args, kwargs);
  entry *found = find_entry(self, &call);
  return found ? run_entry(self, found, args, &call) : ask_slow(self, args, kwargs);
}

/* What the Python side tells; see runtime/direct.py for the layout. */

static PyObject *none(void) {
  Py_IncRef(Py_None);
  return Py_None;
}

/* know(type, form, api, is_torch) -> position */
static PyObject *know(PyObject *object, PyObject *args) {
  Direct *self = (Direct *)object;
  PyObject *type;
  int form_number, torch;
  unsigned long long api;
  if (!PyArg_ParseTuple(args, "OiKp", &type, &form_number, &api, &torch)) return NULL;
  int found = find_kind(self, (PyTypeObject *)type);
  if (found >= 0) return PyLong_FromLongLong(found);
  const DLPackExchangeAPI *exchange = (const DLPackExchangeAPI *)(uintptr_t)api;
  if (self->num_kinds == MOST_KINDS ||
      (form_number == EXCHANGED && (!exchange || exchange->header.version.major != DLPACK_MAJOR_VERSION ||
                                    !exchange->dltensor_from_py_object_no_sync)))
    return PyLong_FromLongLong(-1);
  Py_IncRef(type);
  self->kinds[self->num_kinds] = (kind){(PyTypeObject *)type, exchange, (form)form_number, torch};
  return PyLong_FromLongLong(self->num_kinds++);
}

typedef struct {
  const int64_t *at, *end;
} words;

static int64_t next(words *from) { return from->at < from->end ? *from->at++ : 0; }

static void *make(size_t count, size_t size) { return calloc(count ? count : 1, size); }

/* What an argument of these kinds, dtypes and sizes is taken for. */
static bool read_expected(entry *e, words *from, const brought *call) {
  int size = 0;
  for (int i = 0; i < e->num_args; i++) {
    expected *want = &e->args[i];
    const DLTensor *tensor = &call->tensors[i];
    want->kind = call->kinds[i];
    want->param = (int16_t)next(from);
    want->strided = next(from);
    want->written = next(from);
    want->ndim = (int16_t)tensor->ndim;
    want->first = size;
    if (want->param < 0 || want->param >= e->num_params) return false;
    if (tensor->ndim >= 0) want->dtype = tensor->dtype;
    for (int d = 0, ranged = (int)next(from); d < tensor->ndim; d++, size++) {
      range *r = &e->ranges[size];
      *r = (range){tensor->shape[d], tensor->shape[d], -1, 0};
      e->strides[size] = tensor->strides[d];
      if (ranged) r->low = next(from), r->high = next(from), r->arg = (int32_t)next(from), r->dim = (int32_t)next(from);
      if (r->arg > i || (r->arg >= 0 && r->dim >= (r->arg == i ? d : call->tensors[r->arg].ndim))) return false;
    }
  }
  return true;
}

static bool read_outputs(entry *e, words *from, PyObject *outputs) {
  source *s = e->sources;
  for (int i = 0; i < e->num_outputs; i++) {
    output *out = &e->outputs[i];
    PyObject *whole, *maker, *second, *kwargs;
    if (!PyArg_ParseTuple(PyTuple_GetItem(outputs, i), "OOOO", &maker, &whole, &second, &kwargs)) return false;
    Py_IncRef(out->make = maker);
    Py_IncRef(out->call = whole);
    Py_IncRef(out->second = second);
    Py_IncRef(out->kwargs = kwargs);
    out->constant = whole != Py_None;
    out->param = (int16_t)next(from);
    out->ndim = (int16_t)next(from);
    out->sizes = s;
    if (out->param < 0 || out->param >= e->num_params) return false;
    for (int d = 0; d < out->ndim; d++, s++) s->arg = (int32_t)next(from), s->dim = (int32_t)next(from), s->value = next(from);
  }
  return true;
}

static bool read_entry(entry *e, words *from, PyObject *outputs, const brought *call) {
  int num_given = 0;
  for (int i = 0; i < call->num_args; i++) num_given += call->tensors[i].ndim > 0 ? call->tensors[i].ndim : 0;
  e->id = next(from);
  e->num_args = call->num_args;
  e->num_params = (int)next(from);
  e->num_outputs = (int)PyTuple_Size(outputs);
  int num_made = (int)next(from);
  e->num_sizes = num_given + num_made;
  e->num_results = (int)next(from);
  e->device = call->first->device;
  if (e->num_params > 2 * MOST_ARGS || e->num_params != e->num_args + e->num_outputs) return false;
  e->args = make((size_t)e->num_args, sizeof *e->args);
  e->ranges = make((size_t)num_given, sizeof *e->ranges);
  e->strides = make((size_t)num_given, sizeof *e->strides);
  e->outputs = make((size_t)e->num_outputs, sizeof *e->outputs);
  e->sources = make((size_t)num_made, sizeof *e->sources);
  e->results = make((size_t)e->num_results, sizeof *e->results);
  if (!e->args || !e->ranges || !e->strides || !e->outputs || !e->sources || !e->results) return false;
  for (int i = 0; i < e->num_results; i++) e->results[i] = (int32_t)next(from);
  return read_expected(e, from, call) && read_outputs(e, from, outputs) && from->at == from->end;
}

static bool grow(Direct *self) {
  int capacity = self->capacity ? 2 * self->capacity : 16;
  entry **table = calloc((size_t)capacity, sizeof *table);
  if (!table) return false;
  for (int i = 0; i < self->capacity; i++) {
    if (!self->table[i]) continue;
    int at = (int)(self->table[i]->hash & (uint64_t)(capacity - 1));
    while (table[at]) at = (at + 1) & (capacity - 1);
    table[at] = self->table[i];
  }
  free(self->table);
  self->table = table;
  self->capacity = capacity;
  return true;
}

static bool insert(Direct *self, entry *e) {
  if (2 * (self->num_entries + 1) > self->capacity && !grow(self)) return false;
  int at = (int)(e->hash & (uint64_t)(self->capacity - 1));
  while (self->table[at]) at = (at + 1) & (self->capacity - 1);
  self->table[at] = e;
  self->num_entries++;
  return true;
}

/* add(args, words, function, handle, outputs) -> whether it was taken: a decision, made for these arguments. With ranges where
 * words say so; else for the very sizes of the arguments. */
static PyObject *add(PyObject *object, PyObject *args) {
  Direct *self = (Direct *)object;
  PyObject *given, *text, *function, *outputs;
  unsigned long long handle;
  if (!PyArg_ParseTuple(args, "OOOKO", &given, &text, &function, &handle, &outputs)) return NULL;
  const int64_t *at = (const int64_t *)(void *)PyBytes_AsString(text);
  if (!at) return NULL;
  words from = {at, at + PyBytes_Size(text) / (Py_ssize_t)sizeof(int64_t)};
  bool ranged = next(&from);
  brought call;
  if (!read_arguments(self, given, &call)) {
    Py_IncRef(Py_False);
    return Py_False;
  }
  if (self->num_entries >= MOST_ENTRIES || self->num_open >= MOST_RANGES) forget(self);
  entry *e = calloc(1, sizeof *e);
  bool whole = e && (Py_IncRef(e->function = function), read_entry(e, &from, outputs, &call)) && fits(e, &call);
  if (whole) {
    e->handle = (void *)(uintptr_t)handle;
    e->hash = hash_call(&call);
    if (ranged) self->open[self->num_open++] = e;
    else whole = insert(self, e);
  }
  if (!whole) free_entry(e);
  if (PyErr_Occurred()) return NULL;
  PyObject *answer = whole ? Py_True : Py_False;
  Py_IncRef(answer);
  return answer;
}

/* bind(names, values, target) */
static PyObject *bind(PyObject *object, PyObject *args) {
  Direct *self = (Direct *)object;
  binding b;
  if (!PyArg_ParseTuple(args, "OOO", &b.names, &b.values, &b.target)) return NULL;
  if (self->num_bindings < MOST_BINDINGS) {
    Py_IncRef(b.names);
    Py_IncRef(b.values);
    Py_IncRef(b.target);
    self->bindings[self->num_bindings++] = b;
  }
  return none();
}

static PyObject *forget_all(PyObject *object, PyObject *unused) {
  (void)unused;
  forget((Direct *)object);
  return none();
}

static int add_calls(PyObject *list, Py_ssize_t at, const entry *e) {
  PyObject *pair = PyTuple_New(2);
  if (!pair) return -1;
  PyTuple_SetItem(pair, 0, PyLong_FromLongLong(e->id));
  PyTuple_SetItem(pair, 1, PyLong_FromLongLong((long long)e->calls));
  return PyList_SetItem(list, at, pair);
}

/* calls() -> [(id, number of calls)] of each decision that is known */
static PyObject *count_calls(PyObject *object, PyObject *unused) {
  Direct *self = (Direct *)object;
  (void)unused;
  Py_ssize_t at = 0;
  PyObject *list = PyList_New(self->num_entries + self->num_open);
  for (int i = 0; list && i < self->capacity; i++)
    if (self->table[i] && add_calls(list, at++, self->table[i])) goto failed;
  for (int i = 0; list && i < self->num_open; i++)
    if (add_calls(list, at++, self->open[i])) goto failed;
  return list;
failed:
  Py_DecRef(list);
  return NULL;
}

/* The object */

static void set_owned(PyObject **slot, PyObject *value) {
  PyObject *former = *slot;
  Py_IncRef(value);
  *slot = value;
  Py_DecRef(former);
}

/* The C function behind a built-in one that takes no arguments; NULL: it is something else. */
static PyCFunction plain_function(PyObject *function, PyTypeObject *builtin) {
  if (function->type != builtin || PyCFunction_GetFlags(function) != METH_NOARGS) return NULL;
  return PyCFunction_GetFunction(function);
}

/* Direct(slow, fail) */
static int init_direct(PyObject *object, PyObject *args, PyObject *kwargs) {
  Direct *self = (Direct *)object;
  PyObject *slow, *fail;
  (void)kwargs;
  if (!PyArg_ParseTuple(args, "OO", &slow, &fail)) return -1;
  PyObject *gradient = PyUnicode_InternFromString("requires_grad"), *array = PyUnicode_InternFromString("__array_struct__");
  if (!gradient || !array) return -1;
  set_owned(&self->wants_gradient, gradient);
  set_owned(&self->array_struct, array);
  Py_DecRef(gradient);
  Py_DecRef(array);
  set_owned(&self->slow, slow);
  set_owned(&self->fail, fail);
  return 0;
}

/* use_torch(grad_enabled, is_negative, example of is_negative bound) */
static PyObject *use_torch(PyObject *object, PyObject *args) {
  Direct *self = (Direct *)object;
  PyObject *grad_enabled, *is_negative, *bound;
  if (!PyArg_ParseTuple(args, "OOO", &grad_enabled, &is_negative, &bound)) return NULL;
  set_owned(&self->grad_enabled, grad_enabled);
  set_owned(&self->is_negative, is_negative);
  self->fast_grad_enabled = plain_function(grad_enabled, bound->type);
  self->fast_is_negative = plain_function(bound, bound->type);
  return none();
}

static int visit_all(Direct *self, visitproc visit, void *arg) {
#define VISIT(object)                          \
  if (object) {                                \
    int stop = visit((PyObject *)(object), arg); \
    if (stop) return stop;                     \
  }
  VISIT(self->head.type)
  VISIT(self->slow)
  VISIT(self->fail)
  VISIT(self->grad_enabled)
  VISIT(self->is_negative)
  for (int i = 0; i < self->num_kinds; i++) VISIT(self->kinds[i].type)
  for (int i = 0; i < self->num_bindings; i++) VISIT(self->bindings[i].target)
#undef VISIT
  return 0;
}

static int traverse(PyObject *object, visitproc visit, void *arg) { return visit_all((Direct *)object, visit, arg); }

static int clear(PyObject *object) {
  Direct *self = (Direct *)object;
  PyObject *held[] = {self->slow,         self->fail,        self->wants_gradient, self->array_struct,
                      self->grad_enabled, self->is_negative};
  self->slow = self->fail = self->wants_gradient = self->array_struct = self->grad_enabled = self->is_negative = NULL;
  forget(self);
  for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_DecRef(held[i]);
  while (self->num_bindings) {
    binding b = self->bindings[--self->num_bindings];
    Py_DecRef(b.names);
    Py_DecRef(b.values);
    Py_DecRef(b.target);
  }
  while (self->num_kinds) Py_DecRef((PyObject *)self->kinds[--self->num_kinds].type);
  return 0;
}

static void dealloc(PyObject *object) {
  PyTypeObject *type = object->type;
  PyObject_GC_UnTrack(object);
  clear(object);
  ((void (*)(void *))PyType_GetSlot(type, Py_tp_free))(object);
  Py_DecRef((PyObject *)type);
}

/* A new type. The version in the name is that of the Python side's calls and of add's words. */
TLAOT_EXPORT PyObject *tlaot_direct_type_2(void) {
  static PyMethodDef methods[] = {
      {"know", know, METH_VARARGS, NULL},           {"add", add, METH_VARARGS, NULL},
      {"bind", bind, METH_VARARGS, NULL},           {"use_torch", use_torch, METH_VARARGS, NULL},
      {"forget", forget_all, METH_NOARGS, NULL},    {"calls", count_calls, METH_NOARGS, NULL},
      {NULL, NULL, 0, NULL},
  };
  static PyType_Slot slots[] = {
      {Py_tp_call, (void *)call_direct}, {Py_tp_init, (void *)init_direct}, {Py_tp_dealloc, (void *)dealloc},
      {Py_tp_traverse, (void *)traverse}, {Py_tp_clear, (void *)clear},     {Py_tp_methods, methods},
      {Py_tp_doc, (void *)"Run the kernel: see tlaot.Kernel."},             {0, NULL},
  };
  static PyType_Spec spec = {"tlaot.Direct", sizeof(Direct), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
  return PyType_FromSpec(&spec);
}
