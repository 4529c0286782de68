cimport cython

from penstock.broker.clock cimport BrokerClock
from penstock.broker.copies cimport Copies
from penstock.log.store cimport LogStore
from penstock.wire.haframe cimport Head


cdef class HaSession:
    cdef object _made_by, _wake
    cdef public object broker
    cdef public LogStore store
    cdef readonly Copies copies
    cdef readonly BrokerClock time
    cdef public object remote
    cdef public long long need, heard_ms, spoke_ms, beat_ms, silent_ms
    cdef public bint closing, trusted
    cdef public bytes nonce
    cdef list _out
    cdef bint _opened
    cdef public object exchange

    cpdef bint fresh(self) except -1
    @cython.locals(pos=cython.longlong, need=cython.longlong, head=Head)
    cpdef long long feed(self, bytearray owner, long long total) except -1
    cpdef long long _open(self, bytearray owner, long long total) except -1
    cpdef frame(self, Head head, bytearray owner)
    cpdef bytes body(self, Head head, bytearray owner)
    cpdef say(self, data)
    @cython.locals(me=object)
    cpdef sayer(self)
    @cython.locals(out=list)
    cpdef bytes take(self)
    @cython.locals(out=list, size=cython.longlong)
    cpdef take_parts(self)
    cpdef end(self)
    cpdef look(self, long long mono_ms)
    cpdef long long asks(self) except -1
    cpdef bint exchanged(self, Head head, bytearray owner, long long epoch) except -1
    cpdef beat(self)
    cpdef end_turn(self, long long mono_ms)
    cpdef lost(self)
