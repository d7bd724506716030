#include <Python.h>

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_answer", .m_size = -1};

PyMODINIT_FUNC PyInit__answer(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "answer", 42) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
