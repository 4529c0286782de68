/* Bytes at a position of a buffer: big-endian integers, CRC-32 and Java's string hash.
 *
 * The compiled modules call these functions; their uncompiled twins with the same names and arguments
 * are in octets.py. The first argument is the buffer, the second a position in it: so one source line,
 * `be32(buf, pos)`, serves a C pointer when compiled and a memoryview when not.
 */
#ifndef PENSTOCK_OCTETS_H
#define PENSTOCK_OCTETS_H
#include <Python.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define PENSTOCK_CLMUL 1
#endif

/* The address of a contiguous buffer; whoever asks keeps the owner alive and unresized. NULL with an exception set. */
static inline unsigned char *address(PyObject *owner) {
    Py_buffer view; unsigned char *at;
    if (PyObject_GetBuffer(owner, &view, PyBUF_SIMPLE) < 0) return NULL;
    at = (unsigned char *)view.buf; PyBuffer_Release(&view); return at;
}
/* A fresh bytes object whose content is still to be written, by whoever made it and nobody else. */
static inline PyObject *blank(int64_t n) { return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n); }
/* The same as a bytearray: room, whose pages nobody touches before they are used. */
static inline PyObject *blank_array(int64_t n) { return PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)n); }
/* n bytes at a position as an object that holds no reference: for as long as the caller knows that they stay. */
static inline PyObject *lend(const unsigned char *b, int64_t p, int64_t n) {
    return PyMemoryView_FromMemory((char *)b + p, (Py_ssize_t)n, PyBUF_READ);
}
static inline int64_t be16(const unsigned char *b, int64_t p) { return ((int64_t)b[p] << 8) | b[p + 1]; }
static inline int64_t be32(const unsigned char *b, int64_t p) {
    uint32_t v; memcpy(&v, b + p, 4); return (int32_t)__builtin_bswap32(v);
}
static inline int64_t ube32(const unsigned char *b, int64_t p) {
    uint32_t v; memcpy(&v, b + p, 4); return (int64_t)__builtin_bswap32(v);
}
static inline int64_t be64(const unsigned char *b, int64_t p) {
    uint64_t v; memcpy(&v, b + p, 8); return (int64_t)__builtin_bswap64(v);
}
static inline void put8(unsigned char *b, int64_t p, int64_t v) { b[p] = (unsigned char)v; }
static inline void put16(unsigned char *b, int64_t p, int64_t v) { b[p] = (unsigned char)(v >> 8); b[p + 1] = (unsigned char)v; }
static inline void put32(unsigned char *b, int64_t p, int64_t v) { uint32_t x = __builtin_bswap32((uint32_t)v); memcpy(b + p, &x, 4); }
static inline void put64(unsigned char *b, int64_t p, int64_t v) { uint64_t x = __builtin_bswap64((uint64_t)v); memcpy(b + p, &x, 8); }
static inline void copy(unsigned char *to, int64_t tp, const unsigned char *from, int64_t fp, int64_t n) {
    if (n > 0) memcpy(to + tp, from + fp, (size_t)n);
}
/* What was stored before stays before what is stored behind this, in memory and in every page that is written back. */
static inline void fence(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
/* These bytes are read or written soon: let them come from memory while other work is done. No page is faulted in. */
static inline void expect(const unsigned char *b, int64_t p, int64_t n) {
    const unsigned char *at = b + p, *end = b + p + n;
    for (; at < end; at += 64) __builtin_prefetch(at);
}
static inline void zero(unsigned char *b, int64_t p, int64_t n) { if (n > 0) memset(b + p, 0, (size_t)n); }
static inline int same(const unsigned char *a, int64_t ap, const unsigned char *b, int64_t bp, int64_t n) {
    return n <= 0 || memcmp(a + ap, b + bp, (size_t)n) == 0;
}
/* Position of byte c in [p, end), or -1. */
static inline int64_t find(const unsigned char *b, int64_t p, int64_t end, int c) {
    const void *at; if (end <= p) return -1;
    at = memchr(b + p, c, (size_t)(end - p)); return at ? (int64_t)((const unsigned char *)at - b) : -1;
}
/* Position of the first byte in [p, end) that is c or d, or -1; made for short texts. */
static inline int64_t find2(const unsigned char *b, int64_t p, int64_t end, int c, int d) {
#ifdef __SSE2__
    const __m128i cs = _mm_set1_epi8((char)c), ds = _mm_set1_epi8((char)d);
    while (p + 16 <= end) {
        __m128i x = _mm_loadu_si128((const __m128i *)(b + p));
        int mask = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(x, cs), _mm_cmpeq_epi8(x, ds)));
        if (mask) return p + __builtin_ctz((unsigned)mask);
        p += 16;
    }
#endif
    for (; p < end; p++) if (b[p] == c || b[p] == d) return p;
    return -1;
}

/* Whether n bytes at p are UTF-8 (no overlong forms, no surrogates), and none of them is below `least`. */
static inline int utf8(const unsigned char *b, int64_t p, int64_t n, int least) {
    const unsigned char *s = b + p, *end = s + n;
    const uint64_t high = 0x8080808080808080ULL, low = 0x0101010101010101ULL * (uint64_t)least;
    while (end - s >= 8) {
        uint64_t x;
        memcpy(&x, s, 8);
        if ((x | ((x - low) & ~x)) & high) break;
        s += 8;
    }
    while (s < end) {
        unsigned int c = *s++, more, least_of, value;
        if (c < 0x80) { if ((int)c < least) return 0; continue; }
        if (c < 0xC2 || c > 0xF4) return 0;
        more = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
        least_of = more == 1 ? 0x80 : more == 2 ? 0x800 : 0x10000;
        value = c & (0x3F >> more);
        if (end - s < (int64_t)more) return 0;
        while (more--) { c = *s++; if ((c & 0xC0) != 0x80) return 0; value = value << 6 | (c & 0x3F); }
        if (value < least_of || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return 0;
    }
    return 1;
}

/* Sixteen lower-case hexadecimal digits of v at p. */
static inline void put_hex16(unsigned char *b, int64_t p, int64_t v) {
    uint64_t x = (uint64_t)v; int at;
    for (at = 15; at >= 0; at--) { b[p + at] = (unsigned char)"0123456789abcdef"[x & 15]; x >>= 4; }
}
/* The number that sixteen lower-case hexadecimal digits at p spell, or -1. */
static inline int64_t hex16(const unsigned char *b, int64_t p) {
    uint64_t x = 0; int at;
    for (at = 0; at < 16; at++) {
        unsigned char c = b[p + at];
        if (c >= '0' && c <= '9') x = x << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f') x = x << 4 | (uint64_t)(c - 'a' + 10);
        else return -1;
    }
    return x >> 63 ? -1 : (int64_t)x;
}

/* CRC-32 (the zlib polynomial), resumable: crc is the sum so far, 0 at the start. */
static uint32_t penstock_crc_table[8][256];
static int penstock_crc_ready;
static void penstock_crc_init(void) {
    uint32_t n, k, c;
    if (penstock_crc_ready) return;
    for (n = 0; n < 256; n++) {
        c = n; for (k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0xEDB88320u : c >> 1;
        penstock_crc_table[0][n] = c;
    }
    for (n = 0; n < 256; n++)
        for (k = 1; k < 8; k++)
            penstock_crc_table[k][n] = (penstock_crc_table[k - 1][n] >> 8) ^ penstock_crc_table[0][penstock_crc_table[k - 1][n] & 255];
    penstock_crc_ready = 1;
}
/* c is the complemented register; eight bytes a step. */
static uint32_t penstock_crc_bytes(uint32_t c, const unsigned char *p, size_t n) {
    while (n >= 8) {
        uint32_t a, b; memcpy(&a, p, 4); memcpy(&b, p + 4, 4); a ^= c;
        c = penstock_crc_table[7][a & 255] ^ penstock_crc_table[6][(a >> 8) & 255] ^ penstock_crc_table[5][(a >> 16) & 255] ^
            penstock_crc_table[4][a >> 24] ^ penstock_crc_table[3][b & 255] ^ penstock_crc_table[2][(b >> 8) & 255] ^
            penstock_crc_table[1][(b >> 16) & 255] ^ penstock_crc_table[0][b >> 24];
        p += 8; n -= 8;
    }
    while (n--) c = (c >> 8) ^ penstock_crc_table[0][(c ^ *p++) & 255];
    return c;
}
#ifdef PENSTOCK_CLMUL
/* Folding by carry-less multiplication (Gopal et al., "Fast CRC Computation Using PCLMULQDQ", Intel 2009): four
 * 128-bit lanes are carried 512 bits forward a step, then joined; the constants are x^n mod P, bit-reflected. A rest of
 * less than 16 bytes is joined to the end of what stands before it: the last 16 bytes of all are a piece again, and what
 * they push out in front is carried over them. 128 bits become 32 by Barrett's reduction. n >= 16. Where the processor
 * multiplies four lanes at once, sixteen are carried 2,048 bits a step: three times as fast from a few KB on. */
static const unsigned char penstock_shifts[48] = {
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};
#define PENSTOCK_NARROW __attribute__((target("pclmul,sse4.1")))
#define PENSTOCK_WIDE __attribute__((target("vpclmulqdq,avx512f,pclmul,sse4.1")))
#define PENSTOCK_K12 0x01c6e41596LL, 0x0154442bd4LL
#define PENSTOCK_K34 0x00ccaa009eLL, 0x01751997d0LL
#define PENSTOCK_FOLD(x, k, y) x = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), y)
/* What stands before p is carried into a; n bytes follow. */
PENSTOCK_NARROW static inline uint32_t penstock_crc_end(__m128i a, const unsigned char *p, size_t n) {
    const __m128i k34 = _mm_set_epi64x(PENSTOCK_K34);
    const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124LL), barrett = _mm_set_epi64x(0x01f7011641LL, 0x01db710641LL);
    const __m128i low32 = _mm_set_epi32(0, 0, 0, -1);
    __m128i x;
    while (n >= 16) { PENSTOCK_FOLD(a, k34, _mm_loadu_si128((const __m128i *)p)); p += 16; n -= 16; }
    if (n) {
        const __m128i out = _mm_loadu_si128((const __m128i *)(penstock_shifts + n)); /* the first n bytes of a, at the end */
        const __m128i stay = _mm_loadu_si128((const __m128i *)(penstock_shifts + 16 + n)); /* the others, at the front */
        const __m128i last = _mm_loadu_si128((const __m128i *)(p + n - 16)); /* behind which the rest lies */
        x = _mm_blendv_epi8(_mm_shuffle_epi8(a, stay), last, stay);
        a = _mm_shuffle_epi8(a, out);
        PENSTOCK_FOLD(a, k34, x);
    }
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, k34, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low32), k5, 0x00));
    x = _mm_clmulepi64_si128(_mm_and_si128(a, low32), barrett, 0x10);
    x = _mm_clmulepi64_si128(_mm_and_si128(x, low32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, x), 1);
}
PENSTOCK_NARROW static uint32_t penstock_crc_fold(uint32_t c, const unsigned char *p, size_t n) {
    const __m128i k12 = _mm_set_epi64x(PENSTOCK_K12), k34 = _mm_set_epi64x(PENSTOCK_K34);
    __m128i a = _mm_xor_si128(_mm_loadu_si128((const __m128i *)p), _mm_cvtsi32_si128((int)c));
    if (n >= 64) {
        __m128i b = _mm_loadu_si128((const __m128i *)(p + 16));
        __m128i d = _mm_loadu_si128((const __m128i *)(p + 32)), e = _mm_loadu_si128((const __m128i *)(p + 48));
        p += 64; n -= 64;
        while (n >= 64) {
            PENSTOCK_FOLD(a, k12, _mm_loadu_si128((const __m128i *)p)); PENSTOCK_FOLD(b, k12, _mm_loadu_si128((const __m128i *)(p + 16)));
            PENSTOCK_FOLD(d, k12, _mm_loadu_si128((const __m128i *)(p + 32))); PENSTOCK_FOLD(e, k12, _mm_loadu_si128((const __m128i *)(p + 48)));
            p += 64; n -= 64;
        }
        PENSTOCK_FOLD(a, k34, b); PENSTOCK_FOLD(a, k34, d); PENSTOCK_FOLD(a, k34, e);
    } else { p += 16; n -= 16; }
    return penstock_crc_end(a, p, n);
}
/* n >= 256 */
#define PENSTOCK_FOLD4(x, k, y) x = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11), y, 0x96)
PENSTOCK_WIDE static uint32_t penstock_crc_fold_wide(uint32_t c, const unsigned char *p, size_t n) {
    const __m512i far = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01322d1430LL, 0x011542778aLL));
    const __m512i near = _mm512_broadcast_i32x4(_mm_set_epi64x(PENSTOCK_K12));
    const __m128i k34 = _mm_set_epi64x(PENSTOCK_K34);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)c)));
    __m512i b = _mm512_loadu_si512(p + 64), d = _mm512_loadu_si512(p + 128), e = _mm512_loadu_si512(p + 192);
    __m128i x;
    p += 256; n -= 256;
    while (n >= 256) {
        PENSTOCK_FOLD4(a, far, _mm512_loadu_si512(p)); PENSTOCK_FOLD4(b, far, _mm512_loadu_si512(p + 64));
        PENSTOCK_FOLD4(d, far, _mm512_loadu_si512(p + 128)); PENSTOCK_FOLD4(e, far, _mm512_loadu_si512(p + 192));
        p += 256; n -= 256;
    }
    PENSTOCK_FOLD4(a, near, b); PENSTOCK_FOLD4(a, near, d); PENSTOCK_FOLD4(a, near, e);
    while (n >= 64) { PENSTOCK_FOLD4(a, near, _mm512_loadu_si512(p)); p += 64; n -= 64; }
    x = _mm512_castsi512_si128(a);
    PENSTOCK_FOLD(x, k34, _mm512_extracti32x4_epi32(a, 1));
    PENSTOCK_FOLD(x, k34, _mm512_extracti32x4_epi32(a, 2));
    PENSTOCK_FOLD(x, k34, _mm512_extracti32x4_epi32(a, 3));
    return penstock_crc_end(x, p, n);
}
#undef PENSTOCK_FOLD
#undef PENSTOCK_FOLD4
#endif
static inline int64_t crc32(const unsigned char *b, int64_t p, int64_t n, int64_t crc) {
    uint32_t c = ~(uint32_t)crc;
    if (!penstock_crc_ready) penstock_crc_init();
#ifdef PENSTOCK_CLMUL
    if (n >= 256 && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f"))
        return (int64_t)(uint32_t)~penstock_crc_fold_wide(c, b + p, (size_t)n);
    if (n >= 16 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
        return (int64_t)(uint32_t)~penstock_crc_fold(c, b + p, (size_t)n);
#endif
    return (int64_t)(uint32_t)~penstock_crc_bytes(c, b + p, n > 0 ? (size_t)n : 0);
}

static inline uint32_t penstock_crc_word(uint32_t c, uint64_t w) {
    uint32_t a = c ^ (uint32_t)w, b = (uint32_t)(w >> 32);
    return penstock_crc_table[7][a & 255] ^ penstock_crc_table[6][(a >> 8) & 255] ^ penstock_crc_table[5][(a >> 16) & 255] ^
           penstock_crc_table[4][a >> 24] ^ penstock_crc_table[3][b & 255] ^ penstock_crc_table[2][(b >> 8) & 255] ^
           penstock_crc_table[1][(b >> 16) & 255] ^ penstock_crc_table[0][b >> 24];
}
/* crc32 of 19 bytes that need not be there yet: a letter, then numbers of 4, 8, 2 and 4 bytes. To read what was just stored in
   pieces would wait for all stores before it. */
static inline int64_t crc32_head(int64_t letter, int64_t n4, int64_t n8, int64_t n2, int64_t m4, int64_t crc) {
    uint64_t second = __builtin_bswap32((uint32_t)n4), third = __builtin_bswap64((uint64_t)n8);
    uint64_t fourth = __builtin_bswap16((uint16_t)n2), last = __builtin_bswap32((uint32_t)m4);
    uint32_t c = ~(uint32_t)crc, n;
    if (!penstock_crc_ready) penstock_crc_init();
    c = penstock_crc_word(c, (uint64_t)(unsigned char)letter | second << 8 | third << 40);
    c = penstock_crc_word(c, third >> 24 | fourth << 40 | last << 56);
    for (n = 1; n < 4; n++) c = (c >> 8) ^ penstock_crc_table[0][(c ^ (uint32_t)(last >> (8 * n))) & 255];
    return (int64_t)(uint32_t)~c;
}

/* Java's String.hashCode over the UTF-16 units of UTF-8 text; resumable like crc32, 0 at the start. Signed 32 bits. */
static inline int64_t java_hash(const unsigned char *b, int64_t p, int64_t n, int64_t h0) {
    uint32_t h = (uint32_t)h0, c; int64_t end = p + n;
    while (p < end) {
        c = b[p];
        if (c < 0x80) { h = h * 31u + c; p += 1; }
        else if (c >= 0xF0 && p + 3 < end) {
            c = ((c & 7u) << 18 | (b[p + 1] & 63u) << 12 | (b[p + 2] & 63u) << 6 | (b[p + 3] & 63u)) - 0x10000u;
            h = h * 31u + (0xD800u + (c >> 10)); h = h * 31u + (0xDC00u + (c & 0x3FFu)); p += 4;
        }
        else if (c >= 0xE0 && p + 2 < end) { h = h * 31u + ((c & 15u) << 12 | (b[p + 1] & 63u) << 6 | (b[p + 2] & 63u)); p += 3; }
        else if (c >= 0xC0 && p + 1 < end) { h = h * 31u + ((c & 31u) << 6 | (b[p + 1] & 63u)); p += 2; }
        else { h = h * 31u + 0xFFFDu; p += 1; }
    }
    return (int32_t)h;
}

/* Tell the system something of the pages that hold n bytes at p, other threads running meanwhile. Older systems refuse what
 * they do not know, and then nothing is lost but time. */
#include <sys/mman.h>
#include <unistd.h>
static inline void penstock_advise(unsigned char *b, int64_t p, int64_t n, int advice) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)b + (uintptr_t)p) & ~(page - 1);
    uintptr_t to = (uintptr_t)b + (uintptr_t)(p + n);
    if (n <= 0) return;
    Py_BEGIN_ALLOW_THREADS
    (void)madvise((void *)from, to - from, advice);
    Py_END_ALLOW_THREADS
}
/* Back the bytes with written pages now (MADV_POPULATE_WRITE, Linux 5.14); else they come one fault at a time, as ever. */
static inline void populate(unsigned char *b, int64_t p, int64_t n) { penstock_advise(b, p, n, 23); }
/* Unmap the bytes of a shared mapping of a file: they stay in the file's pages, and come back by a fault. A flush has to make
 * each written page of a mapping read-only, and says so to every core that runs this process, page by page; this says it once. */
static inline void unmap(unsigned char *b, int64_t p, int64_t n) { penstock_advise(b, p, n, MADV_DONTNEED); }
/* Give a socket n bytes at p, as many as it takes at once: how many. 0 also where it is broken, which the next one to ask is told. */
#include <sys/socket.h>
static inline int64_t send_now(int fd, const unsigned char *b, int64_t p, int64_t n) {
    ssize_t sent = send(fd, b + p, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? 0 : (int64_t)sent;
}
/* Wait for what a socket has, at most n bytes, other threads running meanwhile, as long as SO_RCVTIMEO says. OSError: also for a
 * signal (EINTR), behind its handler, so that the caller looks at its own deadline, which Python's sockets do not where they have none. */
static inline PyObject *receive(int fd, int64_t n, int flags) {
    ssize_t got;
    PyObject *found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n);
    if (!found) return NULL;
    Py_BEGIN_ALLOW_THREADS
    got = recv(fd, PyBytes_AS_STRING(found), (size_t)n, flags);
    Py_END_ALLOW_THREADS
    if (got < 0) {
        Py_DECREF(found);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    _PyBytes_Resize(&found, got);
    return found;
}
/* Give a socket n bytes at p, or the first of them: how many. It waits, and fails, as `receive` does. */
static inline int64_t deliver(int fd, const unsigned char *b, int64_t p, int64_t n) {
    ssize_t sent;
    Py_BEGIN_ALLOW_THREADS
    sent = send(fd, b + p, (size_t)n, MSG_NOSIGNAL);
    Py_END_ALLOW_THREADS
    if (sent < 0) PyErr_SetFromErrno(PyExc_OSError);
    return sent;
}
/* Whether an open socket has nothing to be read, not even its end or an error. */
#include <poll.h>
static inline int silent(int fd) {
    struct pollfd one = {fd, POLLIN, 0};
    return fd >= 0 && poll(&one, 1, 0) == 0;
}
/* The clock of Python's `time.monotonic`; the steady one that goes on while the machine sleeps, in nanoseconds. */
#include <time.h>
#ifdef CLOCK_BOOTTIME
#define PENSTOCK_STEADY CLOCK_BOOTTIME
#else
#define PENSTOCK_STEADY CLOCK_MONOTONIC
#endif
static inline double monotonic_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
static inline int64_t steady_ns(void) {
    struct timespec now;
    clock_gettime(PENSTOCK_STEADY, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
#endif
