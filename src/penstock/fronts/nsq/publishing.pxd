cimport cython

from penstock.broker.nsq.topics cimport Topic
from penstock.fronts.nsq.connection cimport NsqConnection
from penstock.fronts.nsq.shared cimport Shared


@cython.final
cdef class Seat:
    cdef readonly bytes name
    cdef const unsigned char *name_at
    cdef readonly Topic topic
    cdef readonly long long count

    cpdef name_topic(self, Topic topic)
    cpdef leave_deleted(self)
    cdef void add(self, long long count) noexcept


cdef class Publisher:
    cdef Shared shared
    cdef public object queueing
    cdef public Topic topic
    cdef public Seat seat
    cdef public dict counts
    cdef dict _seats

    @cython.locals(stop=cython.longlong, topic=Topic, name=bytes, seat=Seat)
    cdef long long _topic_of(self, NsqConnection asker, long long pos, long long last, bytes verb) except -2
    cdef Seat _seat_of(self, bytes name)
    cpdef settle_counts(self)
    @cython.locals(base=cython.p_uchar, size=cython.longlong, at=cython.longlong, begin=cython.longlong, answer=cython.int, topic=Topic, found=cython.longlong)
    cdef long long pub(self, NsqConnection asker, long long pos, long long last, long long body, long long total) except -2
    @cython.locals(size=cython.longlong, count=cython.longlong, begin=cython.longlong, head=cython.longlong, end=cython.longlong, found=cython.longlong)
    cdef long long mpub(self, NsqConnection asker, long long pos, long long last, long long body, long long total) except -2
    @cython.locals(base=cython.p_uchar, size=cython.longlong, count=cython.longlong, at=cython.longlong, stop=cython.longlong, n=cython.longlong, length=cython.longlong)
    cdef long long _count_of(self, NsqConnection asker, long long body, long long end, long long total) except? -1
    @cython.locals(base=cython.p_uchar, topic=Topic, answer=cython.int, now_ns=cython.longlong, n=cython.longlong, length=cython.longlong)
    cdef long long _store(self, NsqConnection asker, long long at, long long end, long long count) except -2
    @cython.locals(blocked=cython.bint)
    cdef int _ok(self, NsqConnection asker, Topic topic, bytes verb) except -1
