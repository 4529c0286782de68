cimport cython


@cython.final
cdef class Histogram:
    cdef long long[::1] _bounds, _counts
    cdef long long _last, _sum_ns

    @cython.locals(at=cython.longlong)
    cpdef void add_ns(self, long long took_ns) noexcept


@cython.final
cdef class Attempts:
    cdef long long[::1] _bounds, _counts
    cdef long long _last, _again, _sum, _finished

    @cython.locals(at=cython.longlong)
    cpdef void add(self, long long attempts) noexcept
    @cython.locals(other=Attempts, at=cython.longlong)
    cpdef join(self, Attempts other)
