cimport cython


cdef class Handed:
    cdef readonly object message, hand
    cdef public bint settled
    cdef bint acked
    cdef object done, acknowledging

    cpdef begin(self, object for_s)
    cpdef acknowledge(self)


@cython.final
cdef class Delivery(Handed):
    pass


@cython.locals(together=list, handed=Handed, owner=object, to=object)
cpdef finish(list all_)
@cython.locals(handed=Handed)
cdef _finish(object owner, list together)
