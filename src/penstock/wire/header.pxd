cimport cython

from penstock.wire.slots cimport Slots

@cython.final
cdef class HeaderScan(Slots):
    cdef public long long fields_max, code, flag, opaque, version
    cdef long long key, key_length, value, opaque_at, opaque_end
    cdef unsigned char *names
    cdef unsigned char *lengths
    cdef unsigned char *members
    cdef unsigned char *member_lengths
    cdef unsigned char *truth
    cdef unsigned char *changes
    cdef bytearray _kept
    cdef unsigned char *shape
    cdef long long shape_bytes, misses
    cdef long long shape_code, shape_opaque, shape_flag, shape_version, shape_keys, shape_letters
    cdef bint shape_odd
    cdef int parts
    cdef int part_slot[27]
    cdef int part_how[27]
    cdef int part_kind[27]
    cdef long long part_at[27]
    cdef long long part_length[27]
    @cython.locals(base="unsigned char *", known=cython.bint, slot=cython.int)
    cpdef dict look(self, int kind, bytes header, long long size=*)
    @cython.locals(slot=cython.int)
    cdef void clear(self, unsigned char *base) noexcept
    @cython.locals(slot=cython.int)
    cdef int slot_of(self, long long p, long long n) noexcept
    @cython.locals(end=cython.longlong, code=cython.longlong, version=cython.longlong, length=cython.longlong, slot=cython.int, keys=cython.longlong)
    cdef bint binary(self, unsigned char *base, long long p, long long n) noexcept
    cdef bint json(self, unsigned char *base, long long p, long long n) noexcept
    @cython.locals(slot=cython.int, at=cython.longlong, how=cython.int)
    cdef void _keep(self, long long p, long long n) noexcept
    @cython.locals(i=cython.int)
    cdef void _keep_part(self, int slot, int how, int kind, long long at, long long length) noexcept
    @cython.locals(old=cython.longlong, i=cython.int, slot=cython.int, how=cython.int, gap=cython.longlong, start=cython.longlong, kind=cython.int, q=cython.longlong)
    cdef bint _as_before(self, unsigned char *base, long long p, long long end) noexcept
    @cython.locals(end=cython.longlong, c=cython.int, seen=cython.int, member=cython.int, start=cython.longlong)
    cdef bint _whole_json(self, unsigned char *base, long long p, long long n) noexcept
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


@cython.locals(c=cython.int, unit=cython.longlong)
cdef long long _string_end(const unsigned char *base, long long p, long long end) noexcept
cdef long long _unit(const unsigned char *base, long long p, long long end) noexcept
cdef long long _blank(const unsigned char *base, long long p, long long end) noexcept
