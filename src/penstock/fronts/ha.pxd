cimport cython

from penstock.broker.clock cimport BrokerClock
from penstock.broker.copies cimport Copies, Member
from penstock.fronts.hasession cimport HaSession
from penstock.log.commitlog cimport CommitLog
from penstock.log.follow cimport Feeder
from penstock.log.store cimport LogStore
from penstock.wire.haframe cimport Ack, Head, Positions


cdef class MasterSession(HaSession):
    cdef public object front
    cdef public Member member
    cdef public Feeder feeder
    cdef public dict peer
    cdef public tuple who
    cdef public object tables, sender, channels, bare
    cdef object _level
    cdef dict _about
    cdef list _unacknowledged
    cdef long long _told, _sent_ms, _cut_to
    cdef bint _said_in_sync, _hurried

    cdef bytes _proved(self, Head head, bytearray owner)
    @cython.locals(member=Member, feeder=Feeder, end=cython.longlong, flushed=cython.longlong)
    cdef _acknowledged(self, Head head, Ack told)
    @cython.locals(copies=Copies, log_=CommitLog)
    cdef Positions _positions(self, long long position)
    @cython.locals(feeder=Feeder, member=Member, epoch=cython.longlong, told=cython.longlong, end=cython.longlong, heir=cython.bint)
    cpdef end_turn(self, long long mono_ms)
    cdef _say_news(self, long long epoch, long long sent, long long mono_ms, bint heir)
    @cython.locals(copies=Copies)
    cdef bint _gather(self, long long pending, long long mono_ms) except -1
    @cython.locals(copies=Copies)
    cdef long long _urgency(self) except -1
    @cython.locals(sent=cython.longlong, under_way=list, flags=cython.longlong, positions=Positions)
    cdef _send(self, Feeder feeder, Member member, long long epoch, long long end, long long mono_ms)
    @cython.locals(positions=Positions)
    cpdef beat(self, long long flags=*)
    cdef long long _in_sync(self) except -1


cdef class HaFront:
    cdef readonly str name
    cdef readonly dict rejected
    cdef readonly bint ends_turns
    cdef readonly object broker, replica, mastership, favours, stumbles, told
    cdef readonly Copies copies
    cdef readonly LogStore store
    cdef readonly BrokerClock time
    cdef readonly str address, ha_address, followed_at
    cdef public str refused
    cdef readonly object newer
    cdef readonly bytes secret
    cdef readonly set sessions
    cdef readonly long long free_bytes, copying
    cdef object _copied, _mirrors, _known, _again, _term, _abort, _broken, _renumbered, _swings
    cdef long long _due_ms, _worked_ms, _worked_to
    cdef bint _sound, _unsaid

    cpdef fence(self, why)
    @cython.locals(store=LogStore, copies=Copies, mono_ms=cython.longlong, session=HaSession)
    cpdef end_turn(self, list news)
    @cython.locals(copies=Copies, session=HaSession)
    cdef bint _rests(self, long long mono_ms) except -1
    @cython.locals(session=HaSession, able=cython.longlong, epoch=cython.longlong)
    cdef _repair(self, repairs, long long mono_ms)
    cdef _look_at_disk(self)
