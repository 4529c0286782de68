cimport cython

from penstock.client.aio.delivery cimport Handed


@cython.final
cdef class Delivery(Handed):
    cpdef ack(self)


@cython.final
cdef class Iteration:
    cdef object _handout, _row
    cdef Delivery _last

    @cython.locals(delivery=Delivery)
    cdef Delivery _next(self)
