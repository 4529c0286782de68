cimport cython


@cython.final
cdef class FrameParser:
    cdef readonly object error
    cdef readonly list messages
    cdef object _topic, _broker
    cdef bytearray _buffer

    cpdef bint is_ok(self, bytes data)
    @cython.locals(frames=list, done=Py_ssize_t)
    cpdef list feed(self, bytes data)
    cpdef list take(self)
    @cython.locals(at=cython.longlong, size=cython.longlong, kind=cython.longlong, end=cython.longlong)
    cdef Py_ssize_t _cut(self, const unsigned char *base, long long total, list frames) except -1
    @cython.locals(body_bytes=cython.longlong, stored_ms=cython.longlong, attempts=cython.longlong)
    cdef bint _message(self, const unsigned char *base, long long at, long long size) except -1


@cython.locals(name=bytes, body=bytes, parts=bytes)
cpdef bytes publish(object topic, list bodies, long long defer_ms=*)
