cimport cython

from penstock.client.aio.delivery cimport Handed


@cython.final
cdef class InFlight:
    cdef readonly object connection, message_id
    cdef object _reader
    cdef readonly double touched_s, keep_until_s
    cdef public bint settled

    @cython.locals(now_s=cython.double)
    cpdef begin(self, object for_s)
    cpdef touch(self, double now_s)
    cpdef close(self)


@cython.locals(ids=dict, handed=Handed, hand=InFlight, found=list)
cpdef dict close_all(list done, set in_flight)
@cython.locals(message=object)
cpdef list begin_all(object reader, object connection, list messages, double now_s)
