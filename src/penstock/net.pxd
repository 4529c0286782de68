cimport cython


@cython.final
cdef class Net:
    cdef public object role, limits, loop, workers, speaker, view
    cdef public long long memory_bytes_max, waiting_bytes, alone_since_ms
    cdef public dict handshakes
    cdef readonly object late
    cdef public bytearray buffer
    cdef public set connections
    cdef public bint in_turn
    cdef readonly long long _count
    cdef dict _by_address, _rejected
    cdef list _dirty, _servers
    cdef object _timer
    cdef long long _timer_ms, _sweep_ms

    cpdef count_waiting(self, long long size)
    cpdef begin_turn(self)
    cpdef begin(self)
    cpdef mark(self, connection)
