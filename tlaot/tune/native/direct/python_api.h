/* The part of CPython's stable ABI that direct.c uses, declared here: whoever builds a package need not have Python's headers,
 * and one binary serves all versions from 3.10 on. Of an object the head is known, that of builds with a global interpreter lock;
 * the Python side loads the library in no other. */
#ifndef TLAOT_PYTHON_API_H_
#define TLAOT_PYTHON_API_H_

#include <stddef.h>
#include <stdint.h>

typedef ptrdiff_t Py_ssize_t;
typedef struct PyTypeObject PyTypeObject;
typedef struct PyThreadState PyThreadState;
typedef struct {
  Py_ssize_t count; /* only for Py_IncRef and Py_DecRef to touch */
  PyTypeObject *type;
} PyObject;

typedef PyObject *(*PyCFunction)(PyObject *self, PyObject *args);
typedef int (*visitproc)(PyObject *object, void *arg);

typedef struct {
  const char *name;
  PyCFunction call;
  int flags;
  const char *doc;
} PyMethodDef;

typedef struct {
  int slot;
  void *function;
} PyType_Slot;

typedef struct {
  const char *name;
  int basicsize;
  int itemsize;
  unsigned int flags;
  PyType_Slot *slots;
} PyType_Spec;

enum { METH_VARARGS = 1, METH_NOARGS = 4 };
enum {
  Py_tp_call = 50,
  Py_tp_clear = 51,
  Py_tp_dealloc = 52,
  Py_tp_doc = 56,
  Py_tp_init = 60,
  Py_tp_methods = 64,
  Py_tp_traverse = 71,
  Py_tp_free = 74,
};
#define Py_TPFLAGS_HAVE_GC (1u << 14)
#define Py_TPFLAGS_DEFAULT (1u << 18)

extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
#define Py_None (&_Py_NoneStruct)
#define Py_True (&_Py_TrueStruct)
#define Py_False (&_Py_FalseStruct)

void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);
PyObject *PyType_FromSpec(PyType_Spec *spec);
void *PyType_GetSlot(PyTypeObject *type, int slot);
void PyObject_GC_UnTrack(void *object);
int PyArg_ParseTuple(PyObject *args, const char *format, ...);
void PyErr_Clear(void);
PyObject *PyErr_Occurred(void);
PyObject *PyObject_Call(PyObject *callable, PyObject *args, PyObject *kwargs);
PyObject *PyObject_CallObject(PyObject *callable, PyObject *args);
PyObject *PyObject_CallFunctionObjArgs(PyObject *callable, ...);
PyObject *PyObject_GetAttr(PyObject *object, PyObject *name);
PyObject *PyUnicode_InternFromString(const char *text);
PyObject *PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors);
Py_ssize_t PyTuple_Size(PyObject *tuple);
PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t position);
PyObject *PyTuple_New(Py_ssize_t size);
int PyTuple_SetItem(PyObject *tuple, Py_ssize_t position, PyObject *stolen);
PyObject *PyList_New(Py_ssize_t size);
int PyList_SetItem(PyObject *list, Py_ssize_t position, PyObject *stolen);
Py_ssize_t PyDict_Size(PyObject *dict);
PyObject *PyDict_GetItem(PyObject *dict, PyObject *key);
PyObject *PyLong_FromLongLong(long long value);
long long PyLong_AsLongLong(PyObject *object);
double PyFloat_AsDouble(PyObject *object);
void *PyCapsule_GetPointer(PyObject *capsule, const char *name);
char *PyBytes_AsString(PyObject *bytes);
Py_ssize_t PyBytes_Size(PyObject *bytes);
PyCFunction PyCFunction_GetFunction(PyObject *function);
int PyCFunction_GetFlags(PyObject *function);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *state);

#endif
