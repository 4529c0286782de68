cimport cython

from penstock.log.commitlog cimport CommitLog


@cython.final
cdef class Durability:
    cdef public CommitLog log
    cdef public long long interval_ms, window_ms, flushed, summed, flushes
    cdef public bint wanted, with_sums
    cdef public object error
    cdef long long _dirty_since, _sums_since, _retry_ms
    cdef object _told
    cdef bint _running

    cpdef want(self)
    cpdef look(self, long long mono_ms)
    cpdef bint blocked(self, long long mono_ms)
    cpdef long long due_ms(self)


@cython.final
cdef class Preparer:
    cdef public CommitLog log
    cdef public long long prefault_bytes
    cdef bint _running
    cdef long long _retry_ms, _opened_at
