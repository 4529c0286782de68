cimport cython


@cython.final
cdef class UniqueKeys:
    cdef str _prefix
    cdef object _count
    cdef long long _month_ms, _next_month_ms

    @cython.locals(moment=cython.longlong, number=cython.longlong)
    cpdef str next(self, long long now_ms)
    cpdef list take(self, Py_ssize_t count, long long now_ms)
    cdef _turn_to_month(self, long long now_ms)
