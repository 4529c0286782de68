cimport cython

from penstock.delivery.slots cimport Slots
from penstock.delivery.source cimport Source
from penstock.histogram cimport Attempts, Histogram
from penstock.wire.outbox cimport Outbox


cdef class Consumer:
    cdef public Outbox out
    cdef public long long number, ready_count, in_flight, msg_timeout_ms, sample_rate
    cdef public long long message_count, finish_count, requeue_count, behind

    cpdef int deliver(self, Source source, long long attempts) except -1


cdef class ChannelState:
    cdef public bint paused, marked, removed
    cdef public long long timer_ms, origin, deferred_in_memory, deferred_elsewhere, message_count
    cdef object _handed
    cdef Histogram _acknowledged

    cpdef int count(self, long long messages) except -1


cdef class Channel(ChannelState):
    cdef public bytes name, topic_name
    cdef public Source source
    cdef public bint ephemeral
    cdef public long long in_hand_max, unread_max, msg_timeout_max_ms, attempts_max
    cdef public object latency, owner, waiting
    cdef public Slots slots
    cdef public list consumers
    cdef public dict by_number, leaving
    cdef public long long taken, in_flight_count, waiting_count
    cdef public long long requeue_count, timeout_count, finish_count, buried_count, handed_count, handed_bytes
    cdef public Attempts again
    cdef long long _fresh_ns, _finished_ns, _turn, _number

    cpdef long long depth(self) except -1
    @cython.locals(consumer=Consumer, count=cython.longlong, given=cython.longlong, idle=cython.longlong, share=cython.longlong, room=cython.longlong, got=cython.longlong)
    cpdef long long pump(self, long long mono_ms) except -1
    @cython.locals(slots=Slots, source=Source, out=Outbox, before=cython.longlong, got=cython.longlong, slot=cython.longlong, attempts=cython.longlong, dry=cython.bint)
    cdef long long _give(self, Consumer consumer, long long room, long long mono_ms) except -2
    @cython.locals(slot=cython.longlong, after=cython.longlong)
    cdef long long _next_waiting(self) except -2
    cdef _finished(self, long long slot)
    @cython.locals(slot=cython.longlong)
    cdef long long _owned(self, Consumer consumer, long long message_id) noexcept
    @cython.locals(slots=Slots, slot=cython.longlong)
    cpdef int finish(self, Consumer consumer, long long message_id, long long now_ns, long long mono_ms) except -1
    @cython.locals(slot=cython.longlong)
    cpdef int requeue(self, Consumer consumer, long long message_id, long long delay_ms, long long mono_ms) except -1
    @cython.locals(slot=cython.longlong, due=cython.longlong, limit=cython.longlong)
    cpdef int touch(self, Consumer consumer, long long message_id, long long mono_ms) except -1
    @cython.locals(slot=cython.longlong)
    cpdef int reject(self, Consumer consumer, long long message_id) except -1
    cdef _end_flight(self, long long slot)
    cdef _put_back(self, long long slot)
    @cython.locals(slots=Slots, slot=cython.longlong, count=cython.longlong, consumer=Consumer)
    cpdef long long tick(self, long long mono_ms) except -1
    cpdef long long due_ms(self) except -1
