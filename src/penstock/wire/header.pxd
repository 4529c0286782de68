cimport cython

@cython.final
cdef class HeaderScan:
    cdef public long long fields_max, code, flag, opaque, version, bad
    cdef long long key, key_length, value
    cdef unsigned char *base
    cdef unsigned char *names
    cdef unsigned char *lengths
    cdef unsigned char *members
    cdef unsigned char *member_lengths
    cdef unsigned char *truth
    cdef int kind[26]
    cdef long long at[26]
    cdef long long length[26]
    cdef long long keys, letters
    cdef bint odd
    cdef unsigned char *by_letter
    cdef unsigned char *by_name
    @cython.locals(base="unsigned char *", known=cython.bint, slot=cython.int)
    cpdef dict look(self, int kind, bytes header, long long size=*)
    @cython.locals(n=cython.longlong, p=cython.longlong, end=cython.longlong, value=cython.longlong, digit=cython.longlong, negative=cython.bint)
    cdef long long number(self, int slot, long long default) noexcept
    @cython.locals(p=cython.longlong)
    cdef bint true(self, int slot) noexcept
    @cython.locals(n=cython.longlong, p=cython.longlong)
    cpdef bytes text(self, int slot)
    @cython.locals(p=cython.longlong, end=cython.longlong, start=cython.longlong, q=cython.longlong, c=cython.longlong, unit=cython.longlong)
    cdef long long unescape(self, int slot, unsigned char *to, long long tp) noexcept
    @cython.locals(order="unsigned char *", to="unsigned char *", i=cython.int, count=cython.int, slot=cython.int, tp=cython.longlong)
    cpdef bytearray signed(self, long long header, long long body, long long end)
    @cython.locals(slot=cython.int)
    cdef void clear(self, unsigned char *base) noexcept
    @cython.locals(slot=cython.int)
    cdef int slot_of(self, long long p, long long n) noexcept
    @cython.locals(end=cython.longlong, code=cython.longlong, version=cython.longlong, length=cython.longlong, slot=cython.int, keys=cython.longlong)
    cdef bint binary(self, unsigned char *base, long long p, long long n) noexcept
    @cython.locals(end=cython.longlong, c=cython.int, seen=cython.int, member=cython.int)
    cdef bint json(self, unsigned char *base, long long p, long long n) noexcept
    @cython.locals(base="unsigned char *", q=cython.longlong, slot=cython.int, start=cython.longlong, kind=cython.int, keys=cython.longlong)
    cdef long long _fields(self, long long p, long long end) noexcept
    @cython.locals(q=cython.longlong)
    cdef long long _key(self, long long p, long long end) noexcept
    @cython.locals(i=cython.int)
    cdef int _member(self) noexcept
    @cython.locals(left=cython.longlong)
    cdef long long _word(self, long long p, long long end) noexcept
    @cython.locals(base="unsigned char *", negative=cython.bint, start=cython.longlong, value=cython.longlong)
    cdef long long _whole(self, long long p, long long end) noexcept


@cython.locals(more=cython.longlong, lead=cython.longlong)
cdef long long _utf8(long long unit, unsigned char *to, long long tp) noexcept
@cython.locals(value=cython.longlong, i=cython.int, c=cython.longlong)
cdef long long _hex4(const unsigned char *base, long long p) noexcept
@cython.locals(c=cython.int, unit=cython.longlong)
cdef long long _string_end(const unsigned char *base, long long p, long long end) noexcept
cdef long long _unit(const unsigned char *base, long long p, long long end) noexcept
cdef long long _blank(const unsigned char *base, long long p, long long end) noexcept
