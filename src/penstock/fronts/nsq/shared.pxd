cimport cython

from penstock.broker.clock cimport BrokerClock
from penstock.delivery.channel cimport Channel
from penstock.disk.gathering cimport Gathering


@cython.final
cdef class Shared:
    cdef public object broker, config, limits, queueing, ask_authority, tls, users
    cdef readonly BrokerClock time
    cdef object _flush
    cdef public Gathering gathering
    cdef public dict rejected
    cdef public bint strict, expiring, blocked, healthy
    cdef public long long mono_ms, now_ns
    cdef public bytes ok
    cdef unsigned char *ok_at
    cdef public list _beats
    cdef public dict _due
    cdef long long _number
