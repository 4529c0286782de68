cimport cython

from penstock.broker.clock cimport BrokerClock
from penstock.broker.nsq.flush cimport GroupFlush
from penstock.broker.nsq.topics cimport Topic
from penstock.broker.nsq.turns cimport Turns
from penstock.delivery.channel cimport Channel
from penstock.histogram cimport Histogram


@cython.final
cdef class Queueing:
    cdef object _core
    cdef BrokerClock _time
    cdef Histogram _handed
    cdef list _lagging
    cdef object _leaving, _arrived
    cdef dict _early, _held
    cdef tuple _seen_of_log
    cdef public object folder, claims, moving, registry, table, deferral, copied, publishing, dead_letters, notes, redrive, strays
    cdef public object acknowledged
    cdef public Turns turns
    cdef public GroupFlush flush
    cdef public set producers
    cdef public dict topics
    cdef public object topic, find, all, delete, log_channels, write_table, announce, fresh_topic, publish
    cdef public object want_flush, flushes, take_jobs, mark_channel, when_copied, refusal

    cpdef handed(self, long long stamp_ns)
    cpdef mark_topics_of(self, list queues)
    @cython.locals(turns=Turns, mono_ms=cython.longlong, topic=Topic, channel=Channel)
    cpdef end_turn(self)
    cdef _pump(self, Topic topic, long long mono_ms)
    cdef _note(self, Topic topic)
    @cython.locals(mono_ms=cython.longlong, next_ms=cython.longlong)
    cpdef long long tick(self)
    cpdef long long next_due_ms(self)
