/* The sum of rondo.weighted_sum in one pass over memory: what is read as float is added as double, in registers. No
 * operation of torch's does both at once, and averaging is nothing but reading.
 *
 * Every product and every sum is rounded by itself, in the order of the vectors (compiled without contraction), so that
 * for finite numbers the result has the bits of the same operations in torch, on every processor. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#ifdef _MSC_VER
#pragma fp_contract(off)
#endif

/* The widest registers of the processor it runs on, found when it is loaded; without that, those every processor has. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST __attribute__((target_clones("default", "avx2", "avx512f")))
#define INLINED static inline __attribute__((always_inline))
#else
#define WIDEST
#define INLINED static inline
#endif

/* n is a constant wherever this is called, so the inner loop is unrolled and its pointers stay in registers. */
INLINED void add_together(const int n, double *total, const float *const *vectors, const double *weights,
                          Py_ssize_t from, Py_ssize_t to)
{
    for (Py_ssize_t i = from; i < to; i++) {
        double sum = total[i];
        for (int k = 0; k < n; k++)
            sum += weights[k] * vectors[k][i];
        total[i] = sum;
    }
}

WIDEST static void add_block(double *total, Py_ssize_t count, const float *const *vectors, const double *weights,
                             Py_ssize_t from, Py_ssize_t to)
{
    for (; count >= 8; count -= 8, vectors += 8, weights += 8)
        add_together(8, total, vectors, weights, from, to);
    for (; count >= 2; count -= 2, vectors += 2, weights += 2)
        add_together(2, total, vectors, weights, from, to);
    if (count)
        add_together(1, total, vectors, weights, from, to);
}

/* So many numbers that a thread is worth waking, so few that the block of the total stays in a core's cache. */
#define BLOCK 16384

/* Where torch's library of OpenMP is loaded already, and it is before this file, its threads are used, and are awake. */
static void add_all(double *total, Py_ssize_t count, const float *const *vectors, const double *weights,
                    Py_ssize_t length, int threads)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && length > 2 * BLOCK)
#else
    (void)threads;
#endif
    for (Py_ssize_t from = 0; from < length; from += BLOCK)
        add_block(total, count, vectors, weights, from, length - from < BLOCK ? length : from + BLOCK);
}

/* A contiguous vector of the type that struct calls `type`, as long as `length` if that is not negative. */
static int get(PyObject *object, Py_buffer *view, int flags, char type, Py_ssize_t length)
{
    if (PyObject_GetBuffer(object, view, flags | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
        return -1;
    const char *format = view->format ? view->format : "B";
    if (view->ndim != 1 || format[0] != type || format[1] || (length >= 0 && view->shape[0] != length)) {
        PyErr_Format(PyExc_ValueError, "expected one axis of type '%c', as long as the total", type);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

static PyObject *add(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *target, *rows, *factors, *result = NULL;
    Py_buffer total;
    int threads;
    if (!PyArg_ParseTuple(args, "OO!O!i:add", &target, &PyTuple_Type, &rows, &PyTuple_Type, &factors, &threads))
        return NULL;
    Py_ssize_t count = PyTuple_Size(rows), held = 0;
    if (threads < 1) {
        PyErr_SetString(PyExc_ValueError, "expected at least one thread");
        return NULL;
    }
    if (PyTuple_Size(factors) != count) {
        PyErr_SetString(PyExc_ValueError, "expected one weight a vector");
        return NULL;
    }
    if (get(target, &total, PyBUF_WRITABLE, 'd', -1) < 0)
        return NULL;

    Py_buffer *views = PyMem_Calloc(count, sizeof *views);
    const float **vectors = PyMem_Calloc(count, sizeof *vectors);
    double *weights = PyMem_Calloc(count, sizeof *weights);
    if (!views || !vectors || !weights) {
        PyErr_NoMemory();
        goto end;
    }
    for (; held < count; held++) {
        weights[held] = PyFloat_AsDouble(PyTuple_GetItem(factors, held));
        if (PyErr_Occurred() || get(PyTuple_GetItem(rows, held), &views[held], 0, 'f', total.shape[0]) < 0)
            goto end;
        vectors[held] = views[held].buf;
    }
    Py_BEGIN_ALLOW_THREADS
    add_all(total.buf, count, vectors, weights, total.shape[0], threads);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);

end:
    while (held)
        PyBuffer_Release(&views[--held]);
    PyMem_Free(views);
    PyMem_Free(vectors);
    PyMem_Free(weights);
    PyBuffer_Release(&total);
    return result;
}

static PyMethodDef methods[] = {{"add", add, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "rondo._weighted_sum", .m_methods = methods};

PyMODINIT_FUNC PyInit__weighted_sum(void) { return PyModuleDef_Init(&definition); }
