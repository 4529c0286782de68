cimport cython


@cython.final
cdef class Window:
    cdef readonly long long next_offset, bytes_
    cdef dict _sizes

    @cython.locals(size=cython.longlong)
    cpdef add(self, list messages, long long next_offset)
    cpdef settle(self, long long queue_offset)
    cpdef settle_all(self, object handed)
