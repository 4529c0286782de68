cimport cython

from penstock.client.sentanswer cimport SentAnswer


@cython.final
cdef class PlainSend:
    cdef readonly bytearray frame
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

    @cython.locals(
        opaque=cython.longlong, body=bytes, properties=bytes, name=bytes, end=bytes, texts=cython.longlong,
        size=cython.longlong, total=cython.longlong, frame=bytearray, to="unsigned char *", p=cython.longlong,
    )
    cpdef PlainSend request(self, object message, str key, long long now_ms)


@cython.locals(size=Py_ssize_t)
cpdef bint is_plain(object message, Py_ssize_t compress_over) except -1
cdef long long _put(unsigned char *to, long long p, bytes part) except -1
@cython.locals(count=cython.longlong)
cdef long long _digits(long long value) noexcept
@cython.locals(end=cython.longlong, at=cython.longlong)
cdef long long _put_digits(unsigned char *to, long long p, long long value) noexcept
