from penstock.disk.stream cimport Shown


cdef class Source(Shown):
    cdef public long long place, lane

    cpdef int take(self) except -1
    cpdef int show(self, long long lane, long long place) except -1
    cpdef int done(self, long long lane, long long place) except -1
    cpdef long long depth(self) except -1
    cpdef int full(self) except -1
    cpdef long long backend_depth(self) except -1


cdef class MemorySource(Source):
    cdef public long long limit, dropped, _number
    cdef public object backend, queue
    cdef public dict held, _stored
    cdef bytes _last

    cpdef int take(self) except -1
    cpdef int show(self, long long lane, long long place) except -1
    cpdef int done(self, long long lane, long long place) except -1
    cpdef long long depth(self) except -1
    cpdef long long backend_depth(self) except -1
