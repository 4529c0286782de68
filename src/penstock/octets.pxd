# Compiled modules take these from C (octets.h); octets.py is the uncompiled twin.
cdef extern from "octets.h" nogil:
    long long be16(const unsigned char *b, long long p)
    long long be32(const unsigned char *b, long long p)
    long long ube32(const unsigned char *b, long long p)
    long long be64(const unsigned char *b, long long p)
    void put8(unsigned char *b, long long p, long long v)
    void put16(unsigned char *b, long long p, long long v)
    void put32(unsigned char *b, long long p, long long v)
    void put64(unsigned char *b, long long p, long long v)
    void copy(unsigned char *to, long long tp, const unsigned char *src, long long fp, long long n)
    void fence()
    void zero(unsigned char *b, long long p, long long n)
    bint same(const unsigned char *a, long long ap, const unsigned char *b, long long bp, long long n)
    long long find(const unsigned char *b, long long p, long long end, int c)
    long long find2(const unsigned char *b, long long p, long long end, int c, int d)
    bint utf8(const unsigned char *b, long long p, long long n, int least)
    void put_hex16(unsigned char *b, long long p, long long v)
    long long hex16(const unsigned char *b, long long p)
    long long crc32(const unsigned char *b, long long p, long long n, long long crc)
    long long java_hash(const unsigned char *b, long long p, long long n, long long h)

cdef extern from "octets.h":
    unsigned char *address(object owner) except NULL
    bytes blank(long long n)
    bytearray blank_array(long long n)
    object lend(const unsigned char *b, long long p, long long n)
    void populate(unsigned char *b, long long p, long long n)
    void unmap(unsigned char *b, long long p, long long n)
