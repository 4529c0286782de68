cimport cython

from penstock.disk.runs cimport Run, RunQueue, size_of


@cython.final
cdef class Overflow:
    cdef readonly object backend
    cdef readonly RunQueue gathered
    cdef readonly long long behind
    cdef bint _rests
    cdef object _refused
    cdef long long _owed
    cdef long long _most, _bytes_max, _lag_max, _lag_bytes_max

    cpdef bint holds(self) noexcept
    cpdef Py_ssize_t depth(self) except -1
    cpdef long long spare(self) noexcept
    cpdef long long spare_bytes(self) noexcept
    cpdef int put(self, object buffer, long long at, long long end, long long count) except -1
    cpdef keep(self, object buffer, long long at, long long end, long long count)
    cpdef bint spill(self) except -1
    cdef _write(self, list runs)
    cpdef bint refill(self, RunQueue queue, long long most) except -1
    cpdef look(self)
    cpdef clear(self)
