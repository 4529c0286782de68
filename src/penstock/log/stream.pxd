cimport cython

from penstock.disk.segments cimport Segment
from penstock.disk.stream cimport Stream
from penstock.log.commitlog cimport CommitLog
from penstock.log.consumequeue cimport ConsumeQueue
from penstock.log.store cimport LogStore


cdef class LogStream(Stream):
    cdef public LogStore store
    cdef public ConsumeQueue queue
    cdef public int level
    cdef public long long held
    cdef Segment _segment
    cdef bytes _body

    cpdef int hold(self, long long end) except -1
    cpdef long long begin(self) except -1
    @cython.locals(end=cython.longlong, reached=cython.longlong)
    cpdef long long end(self) except -1
    cdef long long _reached(self) except -1
    cpdef long long next(self, long long ordinal) except -1
    @cython.locals(begin=cython.longlong, end=cython.longlong)
    cpdef long long count(self, long long ordinal) except -1
    @cython.locals(entry=tuple, physical=cython.longlong, size=cython.longlong, log=CommitLog, segment=Segment, at=cython.longlong, base=cython.p_uchar, flags=cython.longlong, whole=cython.bint, start=cython.longlong)
    cpdef int find(self, long long ordinal) except -1
    cdef int _inflate(self, long long physical) except -1
