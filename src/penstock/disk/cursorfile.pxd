cimport cython

from penstock.disk.stream cimport Stream


@cython.locals(x=cython.ulonglong)
cdef long long mix(long long n) noexcept
cdef long long _check(long long turn, long long committed) noexcept


@cython.final
cdef class CursorFile:
    cdef public object path, files, map
    cdef public long long committed, durable, beyond, pages, turn
    cdef public bint dirty, named
    cdef unsigned char *base

    @cython.locals(old=cython.p_uchar, first=cython.longlong)
    cpdef _make(self, long long pages)
    @cython.locals(begin=cython.longlong, at=cython.longlong, first=cython.longlong, bit=cython.longlong, ordinal=cython.longlong, number=cython.longlong)
    cpdef settle(self, long long end, Stream stream)
    @cython.locals(page=cython.longlong, at=cython.longlong, bit=cython.longlong)
    cpdef int finished(self, long long ordinal) noexcept
    @cython.locals(page=cython.longlong, at=cython.longlong, first=cython.longlong, bit=cython.longlong, old=cython.longlong)
    cpdef int finish(self, long long ordinal) except -1
    @cython.locals(turn=cython.longlong, at=cython.longlong)
    cdef void _put_committed(self) noexcept
    @cython.locals(at=cython.longlong, first=cython.longlong, wrong=cython.longlong, bit=cython.longlong, number=cython.longlong)
    cpdef _weigh(self)
    cdef bint _mine(self, long long first, long long number) noexcept
    cdef int _bit(self, long long at, long long bit) noexcept
    cdef void _clear(self, long long at, long long bit) noexcept
    @cython.locals(found=cython.longlong, n=cython.longlong, k=cython.longlong, byte=cython.int)
    cdef long long _sum(self, long long at) noexcept
    @cython.locals(found=cython.longlong, at=cython.longlong, first=cython.longlong, n=cython.longlong, number=cython.longlong)
    cpdef long long reach(self)
    @cython.locals(back=cython.bint)
    cpdef void commit(self, long long ordinal) noexcept
