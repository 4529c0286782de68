cimport cython


@cython.final
cdef class Turn:
    cdef Py_ssize_t _next

    @cython.locals(count=Py_ssize_t)
    cpdef object pick(self, object queues, object avoid=*)


@cython.final
cdef class Topic:
    cdef readonly object route
    cdef readonly list queues, lately
    cdef readonly dict addresses
    cdef readonly Turn turn

    cpdef know(self, object route)


@cython.final
cdef class Choosing:
    cdef dict _routes, _guesses, _topics

    cpdef guess(self, object route)
    cpdef forget_guess(self, object topic)
    cpdef object route(self, object topic)
    @cython.locals(known=Topic)
    cpdef list queues(self, object topic)
    @cython.locals(known=Topic)
    cpdef list queues_of(self, object route)
    @cython.locals(known=Topic)
    cpdef object choose(self, object route, object message, object queue, object selector)
    @cython.locals(known=Topic)
    cpdef object address(self, object route, object queue)
    cpdef Turn turn(self, object topic)
    @cython.locals(known=Topic)
    cdef Topic _topic(self, object topic)
