cimport cython

from penstock.broker.clock cimport Alarm, BrokerClock
from penstock.broker.nsq.flush cimport GroupFlush
from penstock.broker.nsq.queueing cimport Queueing
from penstock.broker.nsq.turns cimport Turns
from penstock.disk.gathering cimport Gathering
from penstock.histogram cimport Histogram
from penstock.log.store cimport LogStore


cdef class Process:
    cdef public object rights, faults, clock, broker, name_server
    cdef public list fronts
    cdef public long long mono_ms
    cdef LogStore _store
    cdef BrokerClock _time
    cdef Queueing _queueing
    cdef list _veiled
    cdef dict _failing
    cdef object _tables, _stored, _held, _copies, _sharing, _spools, _mirror
    cdef Gathering _gathering
    cdef GroupFlush _flush
    cdef Alarm _alarm
    cdef list _begins, _enders, _neighbours, _timers
    cdef Turns _turns
    cdef Histogram _append_took
    cdef long long _jobs_due_ms, _appended

    cpdef long long update_time(self)
    @cython.locals(queueing=Queueing, due_ms=cython.longlong, copies_ms=cython.longlong)
    cpdef long long next_due_ms(self)
    cdef bint _staged_wants(self) except -1
    @cython.locals(store=LogStore, queueing=Queueing)
    cdef _end_channels(self, list news)
