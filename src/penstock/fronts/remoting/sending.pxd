cimport cython

from penstock.broker.topics cimport LogTopic
from penstock.fronts.remoting.session cimport RemotingSession
from penstock.fronts.remoting.shared cimport Shared
from penstock.log.consumequeue cimport ConsumeQueue
from penstock.log.draft cimport Draft
from penstock.log.store cimport LogStore
from penstock.wire.answers cimport Answers
from penstock.wire.header cimport HeaderScan
from penstock.wire.outbox cimport Outbox


@cython.final
cdef class Sender:
    cdef Shared shared
    cdef object broker
    cdef LogStore store
    cdef Answers answers
    cdef Draft draft
    cdef Outbox text
    cdef public Outbox waiting, copied
    cdef public bint copied_disk
    cdef bytes born_host
    cdef unsigned char *born
    cdef int born_len
    cdef LogTopic topic
    cdef unsigned char *topic_at
    cdef long long topic_len
    cdef bint special, reserved

    @cython.locals(scan=HeaderScan, base=cython.p_uchar, slot=cython.int, queue_id=cython.longlong, sys_flag=cython.longlong, born_ms=cython.longlong, flag=cython.longlong, reconsume=cython.longlong, topic=LogTopic, n=cython.longlong, draft=Draft, text=Outbox, wait=cython.bint, queue=ConsumeQueue)
    cdef send(self, RemotingSession asker, bint batch, long long body, long long body_len)
    @cython.locals(draft=Draft, outcome=cython.int)
    cdef _send_one(self, RemotingSession asker, LogTopic topic, long long queue_id, bint wait)
    cpdef forget(self)
    cpdef Outbox outbox(self, RemotingSession asker, LogTopic topic, bint wait)
    cdef Outbox _copied_outbox(self, RemotingSession asker, LogTopic topic)
    cdef _too_large(self, RemotingSession asker, str limit)
    @cython.locals(scan=HeaderScan)
    cdef LogTopic _find_topic(self, RemotingSession asker)
    @cython.locals(scan=HeaderScan, n=cython.longlong)
    cdef bint _long_properties(self, RemotingSession asker) noexcept
    @cython.locals(scan=HeaderScan, shared=Shared, draft=Draft, text=Outbox, b=cython.p_uchar, p=cython.longlong, end=cython.longlong, stop=cython.longlong, eq=cython.longlong, wait=cython.bint)
    cdef bint _properties(self, RemotingSession asker, bint batch) except -1
    cdef bint _is(self, const unsigned char *b, long long p, long long n, long long at, long long size) noexcept
    cdef bint _false(self, const unsigned char *b, long long p, long long stop) noexcept
    @cython.locals(draft=Draft, n=cython.longlong, c=cython.int, value=cython.longlong)
    cdef void _note(self, const unsigned char *b, long long p, long long eq, long long stop) noexcept
    cdef bint _begins(self, const unsigned char *b, long long p, long long n, long long at, long long size) noexcept
    @cython.locals(total=cython.longlong, size=cython.longlong, at=cython.longlong)
    cdef bint _reserved_within(self, const unsigned char *b, long long p, long long end) noexcept
    @cython.locals(draft=Draft, count=cython.longlong, out=Outbox, physical=cython.longlong)
    cdef _send_batch(self, RemotingSession asker, LogTopic topic, long long queue_id, bint wait, long long body, long long body_len)
    @cython.locals(out=Outbox)
    cdef _send_special(self, RemotingSession asker, LogTopic topic, long long queue_id, bytes body, bint wait)
    @cython.locals(out=Outbox)
    cdef _send_sequenced(self, RemotingSession asker, LogTopic topic, long long queue_id, bytes body, bint wait, bint batch)
    cpdef bytes text_bytes(self)
