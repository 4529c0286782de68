cimport cython

from penstock.delivery.channel cimport Channel, Consumer
from penstock.delivery.source cimport Source
from penstock.fronts.nsq.shared cimport Shared


cdef class NsqConnection(Consumer):
    cdef public Shared shared
    cdef public Channel channel
    cdef public object queueing, wake_connection, rights
    cdef public str remote, certificate
    cdef public long long need, line_max, msg_size_max, body_size_max
    cdef public bint ended, tls_needed
    cdef public list layers, _wire, _line
    cdef long long _awaited_flush
    cdef unsigned char *base

    cpdef bytes cut(self, long long begin, long long end)
    @cython.locals(value=cython.longlong, digit=cython.longlong)
    cpdef long long decimal(self, long long pos, long long end) noexcept
    cpdef int deliver(self, Source source, long long attempts) except -1
    cpdef bytes take(self)
    cpdef take_parts(self)
