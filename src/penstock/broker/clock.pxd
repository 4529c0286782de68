cimport cython


@cython.final
cdef class BrokerClock:
    cdef readonly object clock
    cdef object _steady_ns
    cdef long long _anchor_ms, _slewed_ms, _mono_ns
    cdef readonly long long mono_ms, now_ms, now_ns

    @cython.locals(mono_ns=cython.longlong, mono_ms=cython.longlong, wrong=cython.longlong)
    cpdef update(self)
    @cython.locals(passed=cython.longlong)
    cpdef long long since_ns(self) noexcept


@cython.final
cdef class Alarm:
    cdef readonly long long due_ms

    cpdef at_latest(self, long long due_ms)
    cpdef set(self, long long due_ms)
