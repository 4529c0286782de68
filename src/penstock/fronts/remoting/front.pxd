cimport cython

from penstock.fronts.remoting.pulling cimport Puller
from penstock.fronts.remoting.sending cimport Sender
from penstock.fronts.remoting.session cimport RemotingSession
from penstock.wire.header cimport HeaderScan


cdef class BrokerSession(RemotingSession):
    cdef public Sender sender
    cdef public Puller puller
    cdef public bint behind
    cdef public long long waits

    @cython.locals(scan=HeaderScan, known=cython.bint)
    cdef frame(self, int kind, long long header, long long size, long long end)
    @cython.locals(code=cython.longlong, out=cython.longlong, held=cython.longlong, pull=cython.bint, batch=cython.bint)
    cdef bint hot(self, long long body, long long end) except -1
    cpdef bytes take(self)
