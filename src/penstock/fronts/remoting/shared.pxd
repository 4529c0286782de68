cimport cython

from penstock.broker.clock cimport BrokerClock
from penstock.histogram cimport Histogram
from penstock.log.draft cimport Draft
from penstock.log.reading cimport ReadResult
from penstock.log.store cimport LogStore
from penstock.wire.answers cimport Answers
from penstock.wire.outbox cimport Outbox


@cython.final
cdef class Shared:
    cdef public object broker, limits
    cdef public LogStore store
    cdef BrokerClock _time
    cdef public Answers answers
    cdef public Draft draft
    cdef public ReadResult result
    cdef Histogram _handed
    cdef public Outbox raw, text
    cdef public long long body_max, properties_max
    cdef public bint hold_enabled, blocked, picky
    cdef bytes _cluster, _searched
    cdef unsigned char *cluster
    cdef long long cluster_len
    cdef unsigned char *searched
    cdef public list holding

    cdef void hand(self, long long stored_ms) noexcept
