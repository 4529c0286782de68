cimport cython


cdef class Connection:
    cdef Net _net
    cdef public object make, session, transport, remote
    cdef object _take
    cdef str _protocol
    cdef bytes _refusal, _left
    cdef bytearray _large
    cdef public bint dirty, to_slave
    cdef bint _counted, _reading, _stopped, _ending, _heard_out, _stops, _closes
    cdef public long long heard_ms
    cdef int _fd
    cdef long long _memory, _unsent, _filled, _frame_ms, _full_ms

    @cython.locals(left=cython.longlong)
    cpdef get_buffer(self, size)
    cdef _grow_large(self, filled)
    @cython.locals(size=cython.longlong)
    cdef _keep_large(self, bytearray large)
    @cython.locals(net=Net, total=cython.longlong)
    cpdef buffer_updated(self, long long size)
    @cython.locals(net=Net, used=cython.longlong, rest=cython.longlong)
    cdef _feed(self, bytearray owner, long long total)
    cdef _reject(self, error)
    cdef _look_at_reading(self)
    cpdef wake(self)
    @cython.locals(net=Net, sent=cython.longlong)
    cpdef flush(self)
    cdef long long _send(self, transport, bytes data) except -1
    @cython.locals(net=Net, unsent=cython.longlong)
    cdef _count_unsent(self, transport)
    cdef _end(self, transport)
    cdef _congested(self, bint full)


@cython.final
cdef class Net:
    cdef public object role, limits, loop, workers, speaker, view
    cdef public long long memory_bytes_max, waiting_bytes, alone_since_ms
    cdef readonly long long mono_ms
    cdef public dict handshakes
    cdef readonly object late
    cdef public bytearray buffer
    cdef public set connections
    cdef public bint in_turn
    cdef readonly object admission, admit, dismiss, refuse, rejected
    cdef list _dirty, _servers
    cdef object _timer, _call_soon, _last, _update_time, _end_role, _take_jobs, _next_due_ms
    cdef dict _failing
    cdef long long _timer_ms, _sweep_ms

    cpdef count_waiting(self, long long size)
    cpdef begin_turn(self)
    cpdef begin(self)
    cpdef mark(self, connection)
