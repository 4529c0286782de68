cimport cython

from penstock.delivery.source cimport Source
from penstock.disk.cursorfile cimport CursorFile
from penstock.disk.stream cimport Stream


cdef class Lane:
    cdef public Stream stream
    cdef public CursorFile file
    cdef public long long number, head, skip

    @cython.locals(found=cython.longlong)
    cpdef long long depth(self) except -1


cdef class CursorSource(Source):
    cdef public long long window, damaged, _turn
    cdef public list lanes
    cdef public object _on_commit
    cdef public dict remembered

    @cython.locals(lane=Lane, count=cython.longlong)
    cpdef int take(self) except -1
    @cython.locals(stream=Stream, file=CursorFile, ordinal=cython.longlong, after=cython.longlong)
    cdef int _take_from(self, Lane lane) except -1
    cdef void _make_visible(self, Stream stream) noexcept
    @cython.locals(stream=Stream, here=Lane)
    cpdef lend(self)
    @cython.locals(stream=Stream, here=Lane)
    cpdef int point_at(self, long long lane, long long place) except -1
    cpdef int done(self, long long lane, long long place) except -1
    @cython.locals(file=CursorFile)
    cdef int _finish(self, Lane lane, long long ordinal) except -1
    @cython.locals(file=CursorFile, stream=Stream, after=cython.longlong)
    cdef int _advance(self, Lane lane, long long ordinal) except -1
    @cython.locals(here=Lane)
    cpdef finish_ahead(self, long long lane, long long place)
    @cython.locals(lane=Lane, found=cython.longlong, n=cython.longlong)
    cpdef long long depth(self) except -1
    @cython.locals(lane=Lane, n=cython.longlong)
    cpdef int full(self) except -1
    @cython.locals(here=Lane)
    cpdef take_over(self, long long lane, long long committed, bytes bits)
    @cython.locals(here=Lane)
    cpdef restart(self, long long lane, long long ordinal)
