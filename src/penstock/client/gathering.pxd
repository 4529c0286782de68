cimport cython


cdef class Waiting:
    cdef readonly object message, waiter, queue, selector
    cdef readonly double deadline
    cdef readonly Py_ssize_t size
    cdef readonly bint ordered, alone


@cython.final
cdef class Lane:
    cdef readonly object queue, row
    cdef readonly bint busy
    cdef readonly Py_ssize_t accepted, settled, size, ordered

    cpdef bint begin(self)
    cpdef rest(self)
    cpdef add(self, Waiting send)
    cpdef list take(self, Py_ssize_t batch_bytes)
    cpdef Py_ssize_t over(self, list sends)


cpdef bint can_be_gathered(object message, Py_ssize_t body_bytes)
@cython.locals(size=Py_ssize_t)
cpdef tuple join_all(list handed, dict lanes, double deadline, Py_ssize_t body_bytes, list idle)
cpdef settle(Waiting send, object receipt)
cpdef settle_all(list sends, object receipt)
cpdef bytes batch_body(object messages, object keys)
