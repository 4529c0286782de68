cimport cython

@cython.final
cdef class FrameCutter:
    cdef public long long header_bytes_max, frame_bytes_max, header, size, end, need
    cdef public int kind
    @cython.locals(length=cython.longlong, size=cython.longlong, kind=cython.int)
    cdef bint next(self, const unsigned char *base, long long pos, long long total) except -1
    cpdef bint cut(self, object owner, long long pos) except -1
