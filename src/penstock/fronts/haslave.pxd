cimport cython

from penstock.broker.copies cimport Copies
from penstock.fronts.hasession cimport HaSession
from penstock.log.follow cimport Follower
from penstock.log.store cimport LogStore
from penstock.wire.haframe cimport Head, Positions


cdef class SlaveSession(HaSession):
    cdef public object front
    cdef public Follower follower
    cdef public object taking
    cdef object _staged, _masters_time
    cdef public bint running, not_master, itself, unanswered, bare
    cdef public long long epoch
    cdef public str refusal, other
    cdef long long _said, _said_flushed, _said_ms
    cdef bint _hurry

    cpdef _meet_stranger(self, str why)
    cpdef hello(self)
    cpdef _accepted(self, Head head, bytes data)
    @cython.locals(copies=Copies, end=cython.longlong)
    cdef _told(self, Positions positions, long long flags)
    @cython.locals(unsaid=cython.bint, news=cython.bint, outcome=cython.int, before=cython.int, follower=Follower)
    cdef _data(self, Head head, bytearray owner)
    @cython.locals(end=cython.longlong, late=cython.bint)
    cpdef end_turn(self, long long mono_ms)
    @cython.locals(store=LogStore, written=cython.longlong, flushed=cython.longlong)
    cdef _acknowledge(self, long long flags)


cdef class AskingSession(SlaveSession):
    pass
