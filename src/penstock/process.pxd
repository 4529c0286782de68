from penstock.broker.clock cimport BrokerClock
from penstock.log.store cimport LogStore


cdef class Process:
    cdef public object rights, faults, clock, broker, name_server, neighbour, announcer
    cdef public list fronts
    cdef public long long mono_ms
    cdef LogStore _store
    cdef BrokerClock _time
    cdef list _begins, _enders
    cdef long long _jobs_due_ms
