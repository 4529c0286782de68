cimport cython


@cython.final
cdef class CursorFile:
    cdef public object path, files, map
    cdef public long long committed, durable, beyond, pages
    cdef public bint dirty, named
    cdef unsigned char *base

    @cython.locals(old=cython.p_uchar, first=cython.longlong)
    cpdef _make(self, long long pages)
    @cython.locals(at=cython.longlong, first=cython.longlong, bit=cython.longlong, ordinal=cython.longlong, number=cython.longlong)
    cpdef settle(self, long long end)
    @cython.locals(page=cython.longlong, at=cython.longlong, bit=cython.longlong)
    cpdef int finished(self, long long ordinal) noexcept
    @cython.locals(page=cython.longlong, at=cython.longlong, first=cython.longlong, bit=cython.longlong, old=cython.longlong)
    cpdef int finish(self, long long ordinal) except -1
    cpdef void commit(self, long long ordinal) noexcept
