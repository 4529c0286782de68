cimport cython


@cython.final
cdef class Waiting:
    cdef readonly object message, waiter, queue, selector, batch
    cdef public double deadline
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


@cython.locals(size=Py_ssize_t, body=bytes)
cpdef Py_ssize_t size_of(object message) except -1
@cython.locals(topic=str)
cpdef bint can_be_gathered(object message, Py_ssize_t body_bytes) except -1
@cython.locals(send=Waiting)
cpdef list still_waited_for(list sends)
@cython.locals(send=Waiting)
cpdef list messages_of(list sends)
@cython.locals(send=Waiting, lane=Lane, size=Py_ssize_t, rest=list)
cpdef tuple join_all(list handed, dict lanes, double deadline, list idle)
cpdef settle(Waiting send, object receipt)
@cython.locals(send=Waiting, number=Py_ssize_t, first=cython.longlong, offset=cython.longlong, keys=tuple, places=tuple, named=cython.bint)
cpdef settle_all(list sends, object receipt)
@cython.locals(texts=list, properties=bytes, flag=cython.longlong, total=Py_ssize_t, body=bytes)
cpdef bytes batch_body(object messages, object keys)
@cython.locals(at=Py_ssize_t, length=Py_ssize_t, extra=Py_ssize_t, body=bytes, properties=bytes)
cdef Py_ssize_t _put_batch(unsigned char *base, object messages, list texts) except -1
