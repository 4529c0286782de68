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
    @cython.locals(send=Waiting, left=Py_ssize_t, any_queue=cython.bint, taken=list)
    cpdef list take(self, Py_ssize_t batch_bytes)
    @cython.locals(send=Waiting, freed=Py_ssize_t, ordered=Py_ssize_t)
    cpdef Py_ssize_t over(self, list sends)


cpdef Py_ssize_t size_of(object message) except -1
cpdef bint can_be_gathered(object message, Py_ssize_t body_bytes) except -1
@cython.locals(send=Waiting, lane=Lane, size=Py_ssize_t, rest=list)
cpdef tuple join_all(list handed, dict lanes, double deadline, Py_ssize_t body_bytes, list idle)
cpdef settle(Waiting send, object receipt)
@cython.locals(send=Waiting, number=Py_ssize_t, first=cython.longlong, offset=cython.longlong, keys=tuple, places=tuple, named=cython.bint)
cpdef settle_all(list sends, object receipt)
@cython.locals(parts=list, body=bytes, properties=bytes, size=Py_ssize_t, total=Py_ssize_t)
cpdef bytes batch_body(object messages, object keys)
