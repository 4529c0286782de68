cimport cython


@cython.final
cdef class PlainSend:
    cdef readonly bytes frame
    cdef readonly long long opaque
    cdef object _queue, _key

    @cython.locals(queue_id=cython.longlong, offset=cython.longlong)
    cpdef object receipt(self, bytes header)


@cython.final
cdef class PlainSends:
    cdef bytes _begin, _to_born, _to_properties, _end
    cdef Py_ssize_t _fixed
    cdef object _queue

    @cython.locals(number=bytes, born=bytes, properties=bytes, body=bytes, size=Py_ssize_t)
    cpdef PlainSend request(self, object message, object key, object now_ms)


cdef long long _number(str text) except -2
