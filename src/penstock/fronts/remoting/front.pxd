cimport cython

from penstock.fronts.remoting.pulling cimport Puller
from penstock.fronts.remoting.sending cimport Sender
from penstock.fronts.remoting.session cimport RemotingSession
from penstock.wire.header cimport HeaderScan


cdef class BrokerSession(RemotingSession):
    cdef public Sender sender
    cdef public Puller puller
    cdef public bint behind, guarded
    cdef object hot_for, proof
    cdef bytes acting_name
    cdef public long long waits

    @cython.locals(scan=HeaderScan, known=cython.bint)
    cdef frame(self, int kind, long long header, long long size, long long end)
    @cython.locals(scan=HeaderScan)
    cdef bint _is_met(self) except -1
    @cython.locals(scan=HeaderScan)
    cdef bint _is_proven(self, long long header, long long body, long long end) except -1
    cpdef forget_rights(self)
    @cython.locals(code=cython.longlong, out=cython.longlong, held=cython.longlong, copied=cython.longlong, pull=cython.bint, batch=cython.bint)
    cdef hot(self, long long body, long long end)
    cdef void _park(self, long long held, long long copied) noexcept
    @cython.locals(scan=HeaderScan, code=cython.longlong)
    cdef bint _is_hot(self) noexcept
    @cython.locals(body=cython.longlong)
    cdef _decoded(self, int kind, long long header, long long size, long long end)
    cpdef bint _let_in(self, request) except -1
    cpdef bytes take(self)
