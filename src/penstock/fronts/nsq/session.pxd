cimport cython

from penstock.delivery.channel cimport Channel
from penstock.fronts.nsq.connection cimport NsqConnection
from penstock.fronts.nsq.publishing cimport Publisher
from penstock.fronts.nsq.shared cimport Shared


cdef class NsqSession(NsqConnection):
    cdef public Publisher publisher
    cdef public long long state, heartbeat_ms, beat_ms, heard_ms, due_number, connected_ms, shake_until_ms
    cdef public bint begun, stalled, buffered
    cdef public dict about
    cdef object _commands, _forget
    cdef public bytearray _inner
    cdef bytearray _kept
    cdef object _pieces
    cdef bint _heard_out

    cpdef long long feed(self, object owner, long long total) except -1
    @cython.locals(base=cython.p_uchar, pos=cython.longlong, end=cython.longlong, after=cython.longlong)
    cpdef long long run(self, object owner, long long total) except -1
    @cython.locals(base=cython.p_uchar, last=cython.longlong, at=cython.longlong)
    cdef long long _command(self, long long pos, long long end, long long total) except -2
    @cython.locals(size=cython.longlong, at=cython.longlong)
    cdef long long _cold(self, long long pos, long long last, long long body, long long total) except -2
    @cython.locals(stop=cython.longlong, answer=cython.int, channel=Channel, shared=Shared)
    cdef int _fin(self, long long at, long long last) except -1
    @cython.locals(stop=cython.longlong, count=cython.longlong)
    cdef int _rdy(self, long long at, long long last) except -1
