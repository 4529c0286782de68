cimport cython

from penstock.clock cimport Clock


@cython.final
cdef class BrokerClock:
    cdef readonly Clock clock
    cdef long long _anchor_ns, _slewed_ms, _mono_ns
    cdef readonly long long mono_ms, now_ms, now_ns

    @cython.locals(mono_ns=cython.longlong, mono_ms=cython.longlong, now_ns=cython.longlong, wrong=cython.longlong, own=cython.longlong)
    cpdef update(self)
    @cython.locals(mono_ns=cython.longlong, now_ns=cython.longlong)
    cpdef catch_up(self)
    cpdef long long since_ns(self)
    cpdef long long next_ms(self)
    cpdef long long mono_next_ms(self)


@cython.final
cdef class Alarm:
    cdef readonly long long due_ms

    cpdef at_latest(self, long long due_ms)
    cpdef set(self, long long due_ms)
