cimport cython
from penstock.spark.kernel.decode cimport Decoder

@cython.final
cdef class Columns:
    cdef readonly Decoder decoder

    @cython.locals(rows=cython.longlong, table="int[::1]", records="unsigned char *", i=cython.longlong,
                   p=cython.longlong, out="int[::1]")
    cpdef object ints(self, int span, long long delta)

    @cython.locals(rows=cython.longlong, table="int[::1]", records="unsigned char *", i=cython.longlong,
                   p=cython.longlong, out="long long[::1]")
    cpdef object longs(self, int span, long long delta)

    @cython.locals(rows=cython.longlong, table="int[::1]", records="unsigned char *", i=cython.longlong,
                   p=cython.longlong, ms=cython.longlong, out="long long[::1]")
    cpdef object times(self, int span, long long delta)

    @cython.locals(rows=cython.longlong, table="int[::1]", inflated="unsigned char *", records="unsigned char *",
                   i=cython.longlong, at=cython.longlong, n=cython.longlong, total=cython.longlong,
                   nulls=cython.longlong, offsets="int[::1]", valid="unsigned char[::1]", to="unsigned char *",
                   p=cython.longlong, o=cython.longlong)
    cpdef object binary(self, int span)

    @cython.locals(rows=cython.longlong, table="int[::1]", records="unsigned char *", i=cython.longlong,
                   at=cython.longlong, n=cython.longlong, total=cython.longlong, nulls=cython.longlong,
                   count=cython.longlong, offsets="int[::1]", inner="int[::1]", valid="unsigned char[::1]",
                   to="unsigned char *", p=cython.longlong, o=cython.longlong, end=cython.longlong,
                   stop=cython.longlong, w=cython.longlong)
    cpdef object words(self, int span)

    @cython.locals(rows=cython.longlong, table="int[::1]", records="unsigned char *", i=cython.longlong,
                   at=cython.longlong, pairs=cython.longlong, names=cython.longlong, values=cython.longlong,
                   offsets="int[::1]", name_at="int[::1]", value_at="int[::1]", name_to="unsigned char *",
                   value_to="unsigned char *", p=cython.longlong, end=cython.longlong, stop=cython.longlong,
                   cut=cython.longlong, n=cython.longlong)
    cpdef object pairs(self, bint headers)

    @cython.locals(records="unsigned char *")
    cdef bint _hidden(self, long long p, long long n) noexcept nogil

    @cython.locals(rows=cython.longlong, table="int[::1]", records="unsigned char *", i=cython.longlong,
                   at=cython.longlong, bits="unsigned char[::1]")
    cpdef object intact(self)

    @cython.locals(rows=cython.longlong, table="int[::1]", i=cython.longlong, positions="int[::1]",
                   lengths="int[::1]")
    cpdef object spans(self, int span)
