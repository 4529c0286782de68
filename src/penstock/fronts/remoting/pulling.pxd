cimport cython

from penstock.broker.topics cimport LogTopic
from penstock.fronts.remoting.session cimport RemotingSession
from penstock.fronts.remoting.shared cimport Shared
from penstock.log.consumequeue cimport ConsumeQueue, TagCodes
from penstock.log.reading cimport ReadResult
from penstock.log.store cimport LogStore
from penstock.wire.answers cimport Answers
from penstock.wire.header cimport HeaderScan
from penstock.wire.outbox cimport Outbox


@cython.final
cdef class Puller:
    cdef Shared shared
    cdef object broker, park
    cdef LogStore store
    cdef Answers answers
    cdef ReadResult result
    cdef LogTopic topic
    cdef TagCodes codes
    cdef bytes group, expression
    cdef long long flags, version, revision
    cdef object online, config, selector
    cdef list counts
    cdef dict pulled
    cdef tuple names
    cdef object guide
    cdef long long far
    cdef bint slave_reads

    @cython.locals(scan=HeaderScan, slot=cython.int, queue_id=cython.longlong, offset=cython.longlong, max_count=cython.longlong, flags=cython.longlong, commit=cython.longlong, suspend_ms=cython.longlong, version=cython.longlong, max_bytes=cython.longlong, topic=LogTopic, gate=cython.int, queue=ConsumeQueue, outcome=cython.int, suspend=cython.bint, empty=cython.bint)
    cdef pull(self, RemotingSession asker)
    @cython.locals(end=cython.longlong, looked_at=cython.longlong, outcome=cython.int)
    cdef int _read(self, ConsumeQueue queue, long long offset, long long max_count, long long max_bytes, int gate, TagCodes codes, object selector) except -1
    @cython.locals(scan=HeaderScan, n=cython.longlong, name=bytes)
    cdef bint _same(self, RemotingSession asker, long long has_expression, long long version) except -1
    cpdef forget(self)
    @cython.locals(scan=HeaderScan, topic=LogTopic)
    cdef LogTopic _find(self, RemotingSession asker, long long has_expression, long long version)
    cdef bint _shows_less(self) except *
    cdef bint _lacks(self, int outcome) except *
    @cython.locals(behind=cython.longlong)
    cdef int _goes_on_at(self, long long place, str group) except -1
    @cython.locals(out=Outbox, result=ReadResult, suggested=cython.longlong)
    cdef int _found(self, RemotingSession asker, LogTopic topic, str group, list counts) except -1
    @cython.locals(result=ReadResult, suggested=cython.longlong)
    cdef _not_found(self, RemotingSession asker, int outcome, long long offset, list counts, ConsumeQueue queue, str group)
    @cython.locals(outcome=cython.int, nothing=cython.bint)
    cpdef bint resume(self, RemotingSession asker, object hold, bint expired, bint behind) except -1

cdef int _gate(LogTopic topic, bint durable, bint following)
