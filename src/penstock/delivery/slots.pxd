cimport cython


@cython.final
cdef class Slots:
    cdef public long long count, timed, capacity
    cdef long long _mask, _free
    cdef public long long[::1] id, place, lane, attempts, owner, since, state, due
    cdef public long long[::1] _heap, _at, _next, _table

    @cython.locals(x=cython.longlong)
    cdef long long _home(self, long long message_id) noexcept
    @cython.locals(at=cython.longlong)
    cdef void _enter(self, long long slot) noexcept
    @cython.locals(at=cython.longlong, slot=cython.longlong)
    cpdef int add(self, long long message_id, long long place, long long lane, long long attempts, long long state) except -2
    @cython.locals(at=cython.longlong, slot=cython.longlong)
    cpdef long long find(self, long long message_id) noexcept
    @cython.locals(at=cython.longlong, hole=cython.longlong, other=cython.longlong, home=cython.longlong)
    cpdef void drop(self, long long slot) noexcept
    @cython.locals(at=cython.longlong)
    cpdef void time(self, long long slot, long long due) noexcept
    @cython.locals(at=cython.longlong, last=cython.longlong)
    cpdef void untime(self, long long slot) noexcept
    cpdef long long first(self) noexcept
    @cython.locals(slot=cython.longlong, due=cython.longlong, above=cython.longlong, other=cython.longlong)
    cdef long long _up(self, long long at) noexcept
    @cython.locals(slot=cython.longlong, due=cython.longlong, below=cython.longlong, other=cython.longlong)
    cdef void _down(self, long long at) noexcept
