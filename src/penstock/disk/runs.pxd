cimport cython


@cython.final
cdef class Run:
    cdef public object buffer
    cdef unsigned char *base
    cdef public long long at, end, count, number

    cpdef int grow(self, long long end, long long count) except -1
    @cython.locals(at=cython.longlong)
    cpdef Py_ssize_t advance(self) except -1
    @cython.locals(begin=cython.longlong)
    cpdef bytes payload(self)
    @cython.locals(first=Run)
    cpdef Run split(self, long long count)
    @cython.locals(at=cython.longlong, begin=cython.longlong)
    cpdef list payloads(self)


@cython.locals(total=cython.longlong, p=cython.longlong, length=cython.longlong, payload=bytes, to=cython.p_uchar)
cpdef Run framed(object payloads)

@cython.locals(run=Run, total=cython.longlong)
cpdef Py_ssize_t size_of(object runs) except -1

@cython.locals(run=Run)
cpdef list octets_of(object runs)


@cython.final
cdef class RunQueue:
    cdef public long long count, size, number
    cdef public object buffer
    cdef Run _run, _last
    cdef object _more

    @cython.locals(last=Run)
    cpdef int add(self, object buffer, long long at, long long end, long long count) except -1
    cpdef int add_run(self, Run run) except -1
    @cython.locals(run=Run, at=cython.longlong)
    cpdef Py_ssize_t take(self) except -2
    @cython.locals(run=Run)
    cpdef Run take_run(self, long long limit)
    @cython.locals(run=Run, piece=Run)
    cpdef Run first(self, long long limit)
    cpdef int drop(self, Run first) except -1
    cpdef list runs(self)
    cpdef list payloads(self)
    cpdef clear(self)


@cython.final
cdef class RunWriter:
    cdef public object buffer
    cdef unsigned char *base
    cdef public long long begin, end, count
    cdef readonly long long kept, kept_end
    cdef long long _size, _next

    cpdef int ready(self, long long size) except -1
    cpdef bint follow(self, long long size) noexcept
    @cython.locals(size=cython.longlong)
    cpdef Py_ssize_t keep(self) noexcept
    @cython.locals(at=cython.longlong, end=cython.longlong)
    cpdef Py_ssize_t record(self, long long length) except -1
    cpdef int place(self) except -1
    cpdef int leave(self) except -1
