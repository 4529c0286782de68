cimport cython

cdef class Slots:
    cdef public long long bad
    cdef unsigned char *base
    cdef int kind[26]
    cdef long long at[26]
    cdef long long length[26]
    cdef long long keys, letters
    cdef bint odd
    cdef unsigned char *by_letter
    cdef unsigned char *by_name
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


@cython.locals(more=cython.longlong, lead=cython.longlong)
cdef long long _utf8(long long unit, unsigned char *to, long long tp) noexcept
@cython.locals(value=cython.longlong, i=cython.int, c=cython.longlong)
cdef long long hex4(const unsigned char *base, long long p) noexcept
