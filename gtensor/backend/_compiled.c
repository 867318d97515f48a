// Calls kernels of the CPU that are compiled ahead: `gtensor/backend/compiled.py` is its only user.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <fenv.h>  // FE_DIVBYZERO and others

#include "../../kernels/cpu/kernel.h"
#include "_threads.h"

// One table per file of kernels.
extern const Entry formulas_float[], formulas_double[], rows[], convolution[], pooling[];

static const Entry *const tables[] = {
    formulas_float, formulas_double, rows, convolution, pooling,
};

enum { TABLES = sizeof tables / sizeof *tables };

static Kernel *found(Py_ssize_t place) {
    for (int t = 0; t < TABLES; t++)
        for (const Entry *entry = tables[t]; entry->name; entry++)
            if (place-- == 0) return entry->run;
    return NULL;
}

// A thread is given at least so many bytes of the largest array: half of 131,072 numbers of float32.
enum { LEAST_BYTES = 1 << 18 };

typedef struct {
    Kernel *kernel;
    const Call *call;
} Job;

static void range(void *given, int64_t begin, int64_t end) {
    const Job *job = given;
    job->kernel(job->call, begin, end);
}

// Take `value` (a tuple) apart by `take`, which returns 0, or -1 with an exception.
#define EACH(value, most, what, take)                                                       \
    do {                                                                                    \
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) > (most)) {                    \
            PyErr_SetString(PyExc_TypeError, what);                                         \
            goto end;                                                                       \
        }                                                                                   \
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {                          \
            PyObject *one = PyTuple_GET_ITEM(value, i);                                     \
            take;                                                                           \
        }                                                                                   \
    } while (0)

// run(kernel, arrays, sizes, numbers, items): arrays are buffers with any strides, or None. Returns
// the flags of the floating-point unit that were raised, as `compiled.py` numbers them.
static PyObject *run(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    PyObject *result = NULL;
    Py_buffer views[MOST_ARRAYS];
    int held = 0;
    Py_ssize_t largest = 0;
    Call call;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "run takes kernel, arrays, sizes, numbers, items");
        return NULL;
    }
    Py_ssize_t place = PyLong_AsSsize_t(given[0]);
    int64_t items = PyLong_AsLongLong(given[4]);
    if (PyErr_Occurred()) return NULL;
    Kernel *kernel = place < 0 ? NULL : found(place);
    if (!kernel) {
        PyErr_SetString(PyExc_IndexError, "no kernel has that number");
        return NULL;
    }
    EACH(given[1], MOST_ARRAYS, "arrays are a tuple of at most 16", {
        if (one == Py_None) {
            views[held].obj = NULL;
            views[held].buf = NULL;
        } else if (PyObject_GetBuffer(one, &views[held], PyBUF_STRIDES)) {
            goto end;
        } else if (views[held].len > largest) {
            largest = views[held].len;
        }
        call.arrays[i] = views[held++].buf;
    });
    EACH(given[2], MOST_SIZES, "sizes are a tuple of at most 24", {
        call.sizes[i] = PyLong_AsLongLong(one);
        if (call.sizes[i] == -1 && PyErr_Occurred()) goto end;
    });
    EACH(given[3], MOST_NUMBERS, "numbers are a tuple of at most 16", {
        call.numbers[i] = PyFloat_AsDouble(one);
        if (call.numbers[i] == -1 && PyErr_Occurred()) goto end;
    });
    int flags;
    Job job = {kernel, &call};
    int64_t each = items > 0 ? largest / items : 0;
    Py_BEGIN_ALLOW_THREADS
    feclearexcept(FE_ALL_EXCEPT);
    gt_parallel(range, &job, items, each ? LEAST_BYTES / each : LEAST_BYTES);
    flags = fetestexcept(FE_ALL_EXCEPT);
    feclearexcept(FE_ALL_EXCEPT);
    Py_END_ALLOW_THREADS
    result = PyLong_FromLong((flags & FE_DIVBYZERO ? 1 : 0) | (flags & FE_OVERFLOW ? 2 : 0) |
                             (flags & FE_UNDERFLOW ? 4 : 0) | (flags & FE_INVALID ? 8 : 0));
end:
    while (held--)
        if (views[held].obj) PyBuffer_Release(&views[held]);
    return result;
}

// names(): of all kernels, in the order of their numbers.
static PyObject *names(PyObject *module, PyObject *unused) {
    PyObject *list = PyList_New(0);
    for (int t = 0; list && t < TABLES; t++)
        for (const Entry *entry = tables[t]; list && entry->name; entry++) {
            PyObject *name = PyUnicode_FromString(entry->name);
            if (!name || PyList_Append(list, name)) Py_CLEAR(list);
            Py_XDECREF(name);
        }
    return list;
}

// processor(): the kind of processor that kernels run as; empty if they cannot: the third kind is
// there for the compiler alone, and would call a function for each sum of a product.
static PyObject *processor(PyObject *module, PyObject *unused) {
    const char *name = "any of the kind that the compiler was set to";
#ifdef KINDS
    __builtin_cpu_init();
    name = __builtin_cpu_supports("x86-64-v4")   ? "x86-64-v4 (AVX-512)"
           : __builtin_cpu_supports("x86-64-v3") ? "x86-64-v3 (AVX2)"
                                                 : "";
#endif
    return PyUnicode_FromString(name);
}

// set_num_threads(count): of later calls.
static PyObject *set_num_threads(PyObject *module, PyObject *count) {
    long wanted = PyLong_AsLong(count);
    if (wanted == -1 && PyErr_Occurred()) return NULL;
    gt_set_threads((int)wanted);
    Py_RETURN_NONE;
}

// get_num_threads(): of a call from this thread.
static PyObject *get_num_threads(PyObject *module, PyObject *unused) {
    return PyLong_FromLong(gt_get_threads());
}

// one_thread_here(): calls from this thread use no other one from now on.
static PyObject *one_thread_here(PyObject *module, PyObject *unused) {
    gt_one_thread_here(1);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, NULL},
    {"names", names, METH_NOARGS, NULL},
    {"processor", processor, METH_NOARGS, NULL},
    {"set_num_threads", set_num_threads, METH_O, NULL},
    {"get_num_threads", get_num_threads, METH_NOARGS, NULL},
    {"one_thread_here", one_thread_here, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_compiled", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

// What `compiled.py` and the kernels' callers expect of this file and of the kernels' arguments; to be
// raised with each change of them, so that what an earlier installation has built is not called.
enum { VERSION = 1 };

PyMODINIT_FUNC PyInit__compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "version", VERSION)) Py_CLEAR(module);
    return module;
}
