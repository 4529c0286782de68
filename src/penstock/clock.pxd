cdef class Clock:
    cdef long long _ahead_ms

    cpdef long long now_ms(self)
    cpdef long long now_ns(self)
    cpdef long long monotonic_ms(self)
    cpdef long long monotonic_ns(self)
