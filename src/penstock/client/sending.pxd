cpdef bint is_bare(object message) except -1
