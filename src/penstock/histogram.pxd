cimport cython


@cython.final
cdef class Histogram:
    cdef long long[::1] _bounds, _counts
    cdef long long _last, _sum_ns

    @cython.locals(at=cython.longlong)
    cpdef void add_ns(self, long long took_ns) noexcept
