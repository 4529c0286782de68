cimport cython

from penstock.broker.clock cimport BrokerClock
from penstock.broker.nsq.queueing cimport Queueing
from penstock.broker.nsq.turns cimport Turns
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
    cdef object _tables, _stored, _groups
    cdef list _begins, _enders, _neighbours
    cdef Turns _turns
    cdef Histogram _append_took
    cdef long long _jobs_due_ms, _appended

    cpdef update_time(self)
    @cython.locals(store=LogStore, queueing=Queueing)
    cdef _end_channels(self, list news)
