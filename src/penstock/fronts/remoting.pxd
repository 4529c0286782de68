cimport cython

from penstock.broker.topics cimport LogTopic
from penstock.log.consumequeue cimport ConsumeQueue, TagCodes
from penstock.log.draft cimport Draft
from penstock.log.reading cimport ReadResult
from penstock.log.store cimport LogStore
from penstock.wire.frames cimport FrameCutter
from penstock.wire.header cimport HeaderScan
from penstock.wire.outbox cimport Outbox


@cython.final
cdef class Texts:
    cdef list held
    cdef bytes blob
    cdef unsigned char *base
    cdef long long at[24]
    cdef long long length[24]


cdef class RemotingSession:
    cdef public object server, wake
    cdef public str remote, id
    cdef public Outbox out
    cdef public HeaderScan scan
    cdef FrameCutter cutter
    cdef public long long need, opaque_now
    cdef public int serialize
    cdef public bint oneway, closed, full
    cdef public dict _pending
    cdef public long long _opaque
    cdef unsigned char *base

    @cython.locals(base=cython.p_uchar, pos=cython.longlong, cutter=FrameCutter)
    cpdef long long feed(self, object owner, long long total) except -1
    cdef frame(self, int kind, long long header, long long size, long long end)
    cdef bytes _bytes(self, long long at, long long n)
    cpdef cold(self, int kind, bytes header, bytes body)
    cpdef bytes take(self)


@cython.final
cdef class BrokerFront:
    cdef public object broker, requests
    cdef public Texts texts
    cdef public Draft draft
    cdef public ReadResult result
    cdef public Outbox raw, text
    cdef public long long body_max
    cdef public bint hold_enabled, blocked
    cdef bytes _cluster, _words
    cdef unsigned char *cluster
    cdef long long cluster_len
    cdef unsigned char *words
    cdef public set sessions
    cdef public list holding
    cdef set _waiting, _durable_keys


cdef class BrokerSession(RemotingSession):
    cdef BrokerFront front
    cdef object broker
    cdef LogStore store
    cdef Texts texts
    cdef Draft draft
    cdef ReadResult result
    cdef public Outbox held
    cdef public bint behind
    cdef public object waiting
    cdef Outbox raw, text
    cdef bytes _born_owner
    cdef unsigned char *born
    cdef int born_len
    cdef LogTopic topic
    cdef unsigned char *topic_at
    cdef long long topic_len
    cdef bint special, reserved
    cdef long long _ext_at
    cdef LogTopic pull_topic
    cdef TagCodes pull_codes
    cdef bytes _pull_group, _pull_expression
    cdef long long _pull_flags, _pull_version, _pull_revision
    cdef object _pull_online, _pull_config
    cdef list _pull_counts
    cdef tuple _pull_names

    @cython.locals(scan=HeaderScan, known=cython.bint)
    cdef frame(self, int kind, long long header, long long size, long long end)
    @cython.locals(code=cython.longlong, out=cython.longlong, held=cython.longlong)
    cdef bint hot(self, long long body, long long end) except -1
    @cython.locals(scan=HeaderScan, base=cython.p_uchar, slot=cython.int, queue_id=cython.longlong, sys_flag=cython.longlong, born_ms=cython.longlong, flag=cython.longlong, reconsume=cython.longlong, topic=LogTopic, n=cython.longlong, draft=Draft, text=Outbox, wait=cython.bint, queue=ConsumeQueue, status=cython.int)
    cdef _send(self, bint batch, long long body, long long body_len)
    cdef Outbox _outbox(self, LogTopic topic, bint wait)
    cdef LogTopic _find_topic(self)
    @cython.locals(scan=HeaderScan, draft=Draft, text=Outbox, b=cython.p_uchar, p=cython.longlong, end=cython.longlong, stop=cython.longlong, eq=cython.longlong, n=cython.longlong, v=cython.longlong, c=cython.int, wait=cython.bint)
    cdef bint _properties(self, bint batch) except -1
    @cython.locals(total=cython.longlong, size=cython.longlong, at=cython.longlong)
    cdef bint _reserved_within(self, const unsigned char *b, long long p, long long end) noexcept
    @cython.locals(draft=Draft, count=cython.longlong, out=Outbox, start=cython.longlong)
    cdef _send_batch(self, LogTopic topic, long long queue_id, bint wait, long long body, long long body_len)
    @cython.locals(scan=HeaderScan, draft=Draft, out=Outbox)
    cdef _send_special(self, LogTopic topic, long long queue_id, bytes body, bint wait)
    cdef bytes _text_bytes(self)
    cdef int _put(self, Outbox out, int text) except -1
    @cython.locals(start=cython.longlong)
    cdef long long _begin(self, Outbox out) except -1
    cdef void _end(self, Outbox out, long long start, long long body) noexcept
    @cython.locals(start=cython.longlong)
    cdef int _sent(self, Outbox out, long long physical, long long queue_id, long long queue_offset) except -1
    @cython.locals(digits=cython.longlong)
    cdef int _sent_ids(self, Outbox out, long long physical, long long count, long long size) except -1
    cdef int _sent_rest(self, Outbox out, long long queue_id, long long queue_offset) except -1
    @cython.locals(at=cython.longlong)
    cdef int _number_value(self, Outbox out, long long value) except -1
    @cython.locals(scan=HeaderScan, slot=cython.int, queue_id=cython.longlong, offset=cython.longlong, max_count=cython.longlong, flags=cython.longlong, commit=cython.longlong, suspend_ms=cython.longlong, version=cython.longlong, max_bytes=cython.longlong, topic=LogTopic, durable=cython.bint, queue=ConsumeQueue, status=cython.int)
    cdef _pull(self)
    @cython.locals(end=cython.longlong)
    cdef int _read(self, ConsumeQueue queue, long long offset, long long max_count, long long max_bytes, bint durable, TagCodes codes) except -1
    @cython.locals(scan=HeaderScan, name=bytes)
    cdef bint _same_pull(self, long long has_expression, long long version) except -1
    @cython.locals(scan=HeaderScan, topic=LogTopic, codes=TagCodes)
    cdef LogTopic _find_pull(self, long long has_expression, long long version)
    @cython.locals(out=Outbox, result=ReadResult, start=cython.longlong, ext=cython.longlong)
    cdef int _found(self, list counts) except -1
    cdef _not_found(self, int status, long long offset)
