cimport cython


cdef long long _FETCHED_MAX


cdef class SegmentFile:
    cdef public object path, files, map, sums_map
    cdef public long long size, first, count, end, allocated, sums_size, sums_allocated, sums_written, tag, warm, dirty, synced, synced_count, life, salt
    cdef public double begun_s, dirty_until_s
    cdef public set damaged
    cdef public int fd, sums_fd
    cdef public bint named, clean, unverified, cut, scattered
    cdef unsigned char *base
    cdef unsigned char *sums
    cdef long long _references

    cpdef bint lent(self) except -1
    cdef void _live(self, long long life) noexcept
    @cython.locals(head=object, base=cython.p_uchar, crc=cython.longlong)
    cdef bint write(self, long long message_id, long long attempts, long long mark, const unsigned char *body, long long at, long long length, long long more) except -1
    @cython.locals(need=cython.longlong, step=cython.longlong, target=cython.longlong, least=cython.longlong, have=cython.longlong)
    cpdef int room(self, long long length, long long records) except -1
    cdef bint is_dirty(self, long long end) noexcept
    cdef void fetch(self, long long length) noexcept
    cpdef long long start(self, long long n) noexcept
    cpdef long long sum(self, long long n) noexcept
    cpdef long long message_id(self, long long n) noexcept
    @cython.locals(length=cython.longlong)
    cpdef long long framed(self, long long at, long long limit) noexcept
    @cython.locals(length=cython.longlong)
    cpdef long long sum_matches(self, long long n, long long at, long long limit) noexcept
    @cython.locals(crc=cython.longlong)
    cpdef seal(self, long long at, long long length, long long more)


@cython.final
cdef class ReadySegment(SegmentFile):
    cpdef long long _most(self) noexcept
    cdef bint _written(self, long long n) noexcept
    cdef long long _goes_on(self, long long n) noexcept
    @cython.locals(at=cython.longlong, length=cython.longlong)
    cpdef _look(self, long long clean, long long limit, bint torn)
    @cython.locals(n=cython.longlong, at=cython.longlong, whole=cython.longlong, whole_end=cython.longlong, length=cython.longlong, most=cython.longlong, ahead=cython.longlong, remade=cython.longlong, there=cython.bint, torn_batch=cython.bint, more=cython.longlong)
    cpdef _scan(self, long long limit, long long clean, bint torn)
    @cython.locals(stored=cython.longlong)
    @cython.locals(n=cython.longlong, end=cython.longlong)
    cpdef long long missing(self, long long most) noexcept
    cdef bint _told(self, long long n, long long at) noexcept
    @cython.locals(start=cython.longlong, length=cython.longlong, over=cython.bint, known=cython.bint)
    cdef bint _batch_over(self, long long n, long long at, long long ahead, long long limit) except -1
    cpdef _leave_out(self, long long n, long long at, long long length)
    @cython.locals(at=cython.longlong)
    cpdef _leave_out_before(self, long long n)
    @cython.locals(n=cython.longlong, at=cython.longlong, mark=cython.longlong)
    cpdef list marked(self)
    cpdef clip(self, long long ordinal)
    cdef long long _crc(self, long long n, long long at, long long length) noexcept
    @cython.locals(stored=cython.longlong, told=cython.bint)
    cpdef int _judge(self, long long n, long long at, long long length) except -1
    cpdef _remake(self, long long n, long long at, long long length)
    @cython.locals(length=cython.longlong, there=cython.bint)
    cdef long long _rejoin(self, long long n, long long at, long long limit, long long most) noexcept
    @cython.locals(length=cython.longlong, found=cython.longlong)
    cpdef long long _tail(self, long long at, long long limit) noexcept
    @cython.locals(length=cython.longlong, found=cython.longlong, at=cython.longlong)
    cpdef long long records(self, long long limit) noexcept
    @cython.locals(second=cython.longlong)
    cdef bint _aligned(self, long long limit) noexcept
    @cython.locals(start=cython.longlong, empty=cython.longlong)
    cdef long long _next_good(self, long long n, long long at, long long limit, long long most) noexcept
