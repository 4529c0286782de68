cimport cython

from penstock.client.sentanswer cimport SentAnswer


@cython.final
cdef class PlainSend:
    cdef readonly bytes frame
    cdef readonly long long opaque
    cdef object _queue, _key
    cdef long long _queue_id

    @cython.locals(ids=str)
    cpdef object receipt(self, SentAnswer answer)


@cython.final
cdef class PlainSends:
    cdef bytes _begin, _to_born, _to_properties, _end
    cdef Py_ssize_t _fixed
    cdef object _queue

    @cython.locals(number=bytes, born=bytes, properties=bytes, body=bytes, size=Py_ssize_t)
    cpdef PlainSend request(self, object message, object key, object now_ms)


@cython.locals(size=Py_ssize_t)
cpdef bint is_plain(object message, Py_ssize_t compress_over) except -1
