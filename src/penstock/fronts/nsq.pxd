cimport cython

from penstock.broker.nsq.topics cimport Topic
from penstock.delivery.channel cimport Channel, Consumer
from penstock.wire.outbox cimport Outbox


@cython.final
cdef class NsqFront:
    cdef public object broker, config, keeper, ask_authority, tls_context
    cdef public set sessions, holding
    cdef public dict rejected
    cdef public bint strict, blocked, healthy
    cdef public long long mono_ms, now_ns
    cdef public bytes ok
    cdef unsigned char *ok_at
    cdef public list _beats
    cdef public dict _due
    cdef long long _number


cdef class NsqSession(Consumer):
    cdef public NsqFront front
    cdef public object keeper, wake_connection, rights
    cdef public str remote
    cdef public long long need, state, topic_count, heartbeat_ms, beat_ms, heard_ms, due_number, connected_ms
    cdef public long long msg_size_max, body_size_max, rdy_max
    cdef public bint begun, closing, stalled, tls_needed, buffered
    cdef public Channel channel
    cdef public Topic topic
    cdef public bytes topic_name
    cdef unsigned char *topic_at
    cdef public dict pub_counts, about
    cdef public list layers, _wire, _held
    cdef public bytearray _inner
    cdef long long _hold_number
    cdef unsigned char *base

    cpdef long long feed(self, object owner, long long total) except -1
    @cython.locals(base=cython.p_uchar, pos=cython.longlong, end=cython.longlong, after=cython.longlong)
    cpdef long long run(self, object owner, long long total) except -1
    @cython.locals(base=cython.p_uchar, last=cython.longlong, length=cython.longlong)
    cdef long long _command(self, long long pos, long long end, long long total) except -2
    @cython.locals(size=cython.longlong, at=cython.longlong)
    cdef long long _cold(self, long long pos, long long last, long long body, long long total) except -2
    cpdef bytes cut(self, long long begin, long long end)
    @cython.locals(stop=cython.longlong, topic=Topic)
    cdef long long _topic_of(self, long long pos, long long last, bytes verb) except -2
    @cython.locals(base=cython.p_uchar, size=cython.longlong, answer=cython.int, topic=Topic)
    cdef long long _pub(self, long long pos, long long last, long long body, long long total) except -2
    @cython.locals(out=Outbox)
    cdef int _ok(self, Topic topic) except -1
    @cython.locals(base=cython.p_uchar, size=cython.longlong, count=cython.longlong, at=cython.longlong, end=cython.longlong, stop=cython.longlong,
                   n=cython.longlong, length=cython.longlong, answer=cython.int, topic=Topic, now_ns=cython.longlong)
    cdef long long _mpub(self, long long pos, long long last, long long body, long long total) except -2
    @cython.locals(stop=cython.longlong, answer=cython.int, channel=Channel, front=NsqFront)
    cdef int _fin(self, long long pos, long long last) except -1
    @cython.locals(stop=cython.longlong, count=cython.longlong)
    cdef int _rdy(self, long long pos, long long last) except -1
    @cython.locals(value=cython.longlong, digit=cython.longlong)
    cpdef long long decimal(self, long long pos, long long end) noexcept
    cpdef bytes take(self)
