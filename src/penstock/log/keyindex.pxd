cimport cython


@cython.final
cdef class IndexFile:
    cdef public object path
    cdef public long long slots
    cdef public long long entries
    cdef public object map
    cdef public object files
    cdef unsigned char *base
    cdef public long long count
    cdef public long long allocated
    cdef public long long flushed
    cdef public long long written
    cdef public bint dirty

    cdef long long _entry_at(self, long long n) noexcept
    cdef long long _slot_at(self, long long hash_) noexcept
    @cython.locals(begin=cython.longlong)
    cdef long long _when(self, long long n) noexcept
    @cython.locals(need=cython.longlong, ahead=cython.longlong, target=cython.longlong, have=cython.longlong)
    cpdef back(self, long long entries)

    cpdef open(self)
    cpdef create(self, long long begin_ms, long long begin_physical)
    @cython.locals(slot=cython.longlong, previous=cython.longlong, at=cython.longlong, begin=cython.longlong, seconds=cython.longlong)
    cdef void put(self, long long hash_, long long physical, long long store_ms) noexcept
    @cython.locals(count=cython.longlong)
    cpdef long long count_below(self, long long physical)
    @cython.locals(used=cython.longlong, more=cython.longlong, begin=cython.longlong, end=cython.longlong, whole=cython.longlong, at=cython.longlong,
                   before=cython.longlong)
    cpdef bint cut(self, long long count, long long since)
    @cython.locals(used=cython.longlong, at=cython.longlong, n=cython.longlong)
    cdef long long _step_back(self, long long begin, long long end, long long count, long long since) noexcept
    @cython.locals(at=cython.longlong, hash_=cython.longlong, previous=cython.longlong, on_two=cython.bint)
    cdef long long _follow(self, long long n, long long slot, long long count, long long since) noexcept
    @cython.locals(at=cython.longlong)
    cdef bint _nothing_at(self, long long n) noexcept
    @cython.locals(n=cython.longlong, slot=cython.longlong, previous=cython.longlong, at=cython.longlong, used=cython.longlong, before=cython.longlong,
                   last=cython.longlong)
    cdef long long _link(self, long long count)
    @cython.locals(n=cython.longlong, at=cython.longlong, when=cython.longlong, previous=cython.longlong)
    cpdef list find(self, long long hash_, long long begin_ms, long long end_ms, long long limit)


@cython.final
cdef class KeyIndex:
    cdef public object folder
    cdef public long long slots
    cdef public long long entries
    cdef public list index_files
    cdef public object files
    cdef object clock
    cdef IndexFile _current
    cdef list _spares
    cdef public long long ends_at

    @cython.locals(current=IndexFile)
    cpdef bint holds(self, long long keys)
    @cython.locals(current=IndexFile, left=cython.longlong, needed=cython.longlong)
    cpdef int room(self, long long keys)
    @cython.locals(current=IndexFile)
    cdef void put(self, long long hash_, long long physical, long long store_ms) noexcept
