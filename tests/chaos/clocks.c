/* Clocks of one process that are not the machine's: loaded before libc (LD_PRELOAD), set at any time through a file, PENSTOCK_CLOCKS.

   The file holds, in the machine's byte order: turn (odd while it is written), wall, since, ahead, ppm; 8 bytes each. The steady
   clocks are `ahead` and what `ppm` has made of the time `since`; the wall clock is that, and `wall` besides. Nanoseconds of
   CLOCK_BOOTTIME. Waits end by these clocks, too. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define MILLION 1000000LL

struct setting { uint64_t turn; int64_t wall, since, ahead, ppm; };
static const volatile struct setting *given;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("PENSTOCK_CLOCKS");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof(struct setting), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) given = at;
}

static void *next(const char *name, const char *version)
{
    void *found = version ? dlvsym(RTLD_NEXT, name, version) : NULL;
    return found ? found : dlsym(RTLD_NEXT, name);
}

#define REAL(name, version) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))next(#name, version)

static int64_t asked(clockid_t id)
{
    struct timespec at;
    REAL(clock_gettime, NULL);
    real(id, &at);
    return at.tv_sec * SECOND + at.tv_nsec;
}

static struct setting now_set(void)
{
    struct setting copy = {0, 0, 0, 0, 0};
    uint64_t turn;
    if (!given) return copy;
    do {
        turn = __atomic_load_n(&given->turn, __ATOMIC_ACQUIRE);
        copy.wall = given->wall; copy.since = given->since; copy.ahead = given->ahead; copy.ppm = given->ppm;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (turn & 1 || turn != __atomic_load_n(&given->turn, __ATOMIC_RELAXED));
    return copy;
}

static int64_t ahead(const struct setting *set)
{
    if (!set->ppm) return set->ahead;
    return set->ahead + (int64_t)((__int128)(asked(CLOCK_BOOTTIME) - set->since) * set->ppm / MILLION);
}

static int is_wall(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI; }

static int is_steady(clockid_t id)
{
    return id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_MONOTONIC_RAW || id == CLOCK_BOOTTIME;
}

static int64_t wrong_by(clockid_t id)
{
    struct setting set = now_set();
    if (is_wall(id)) return set.wall + ahead(&set);
    return is_steady(id) ? ahead(&set) : 0;
}

static struct timespec spec(int64_t ns)
{
    struct timespec at = {ns / SECOND, ns % SECOND};
    if (at.tv_nsec < 0) { at.tv_nsec += SECOND; at.tv_sec--; }
    return at;
}

static int64_t ns_of(const struct timespec *at) { return at->tv_sec * SECOND + at->tv_nsec; }

/* How long the machine's clock takes until this one has gone on so far. */
static int64_t scaled(int64_t ns)
{
    struct setting set = now_set();
    return set.ppm ? (int64_t)((__int128)ns * MILLION / (MILLION + set.ppm)) : ns;
}

/* A moment of this process's clock by the machine's. */
static struct timespec truly(clockid_t id, const struct timespec *moment)
{
    int64_t left = ns_of(moment) - wrong_by(id) - asked(id);
    return spec(asked(id) + (left > 0 ? scaled(left) : left));
}

/* What is looked at. */

int clock_gettime(clockid_t id, struct timespec *at)
{
    REAL(clock_gettime, NULL);
    int answer = real(id, at);
    int64_t by = answer ? 0 : wrong_by(id);
    if (by) *at = spec(ns_of(at) + by);
    return answer;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* What is waited for, so long. */

static int in_ms(int ms) { return ms <= 0 ? ms : (int)((scaled(ms * MILLION) + MILLION - 1) / MILLION); }

int epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
    REAL(epoll_wait, NULL);
    return real(fd, events, most, in_ms(ms));
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int ms, const sigset_t *mask)
{
    REAL(epoll_pwait, NULL);
    return real(fd, events, most, in_ms(ms), mask);
}

int poll(struct pollfd *fds, nfds_t count, int ms)
{
    REAL(poll, NULL);
    return real(fds, count, in_ms(ms));
}

int select(int count, fd_set *restrict r, fd_set *restrict w, fd_set *restrict x, struct timeval *restrict wait)
{
    REAL(select, NULL);
    if (!wait) return real(count, r, w, x, wait);
    int64_t ns = scaled(wait->tv_sec * SECOND + wait->tv_usec * 1000);
    struct timeval changed = {ns / SECOND, ns % SECOND / 1000};
    return real(count, r, w, x, &changed);
}

/* What is waited for, until then. */

int clock_nanosleep(clockid_t id, int flags, const struct timespec *until, struct timespec *left)
{
    REAL(clock_nanosleep, NULL);
    struct timespec changed = flags & TIMER_ABSTIME ? truly(id, until) : spec(scaled(ns_of(until)));
    return real(id, flags, &changed, left);
}

int nanosleep(const struct timespec *wait, struct timespec *left)
{
    return clock_nanosleep(CLOCK_MONOTONIC, 0, wait, left) ? (errno = EINTR, -1) : 0;
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until)
{
    REAL(sem_timedwait, NULL);
    struct timespec changed = truly(CLOCK_REALTIME, until);
    return real(sem, &changed);
}

int sem_clockwait(sem_t *restrict sem, clockid_t id, const struct timespec *restrict until)
{
    REAL(sem_clockwait, NULL);
    struct timespec changed = truly(id, until);
    return real(sem, id, &changed);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t id,
                           const struct timespec *restrict until)
{
    REAL(pthread_cond_clockwait, NULL);
    struct timespec changed = truly(id, until);
    return real(cond, mutex, id, &changed);
}

/* By which clock is known to the condition alone: it is the one that shows about this moment. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    REAL(pthread_cond_timedwait, "GLIBC_2.3.2");
    int64_t moment = ns_of(until);
    int64_t by_wall = moment - asked(CLOCK_REALTIME) - wrong_by(CLOCK_REALTIME);
    int64_t by_steady = moment - asked(CLOCK_MONOTONIC) - wrong_by(CLOCK_MONOTONIC);
    struct timespec changed = truly(llabs(by_wall) < llabs(by_steady) ? CLOCK_REALTIME : CLOCK_MONOTONIC, until);
    return real(cond, mutex, &changed);
}
