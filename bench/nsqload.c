/* A load client for NSQ's protocol, and the floor it is compared with: one thread, one epoll, no allocation per message.
 * bench/ compiles it when it is needed.
 *
 *   nsqload load -p PORT -P producers -C consumers -w window -b batch -s bytes -r RDY -t seconds -W warm-up -i PID
 *                [-n messages] [-d most published minus delivered] -T topic        window: unanswered commands of a connection
 *   nsqload latency -p PORT -n messages -s bytes -T topic     one producer, one consumer, single messages at random moments
 *   nsqload idle -p PORT -n connections                       opens them, says "ready", holds them until its input ends
 *   nsqload sink -p PORT              cuts commands, copies bodies, answers OK, hands messages on: what loopback itself costs
 *
 * A batch above 1 is an MPUB. Prints one line of JSON; cpu_us is the server's CPU time per message over all its threads
 * (schedstat). Everything published is 200 bytes or what -s says, and every consumer finishes what it gets.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { IN = 4 << 20, OUT = 16 << 20, CHUNK = 65536, PER_ADDRESS = 8000 };

struct peer {
    int fd, consumes, begun;
    uint64_t sent, answered; /* producer: bytes of commands, answers */
    char *in, *out;
    size_t filled, out_at, out_end;
};

static void die(const char *what) { perror(what); exit(1); }
static uint32_t rd32(const char *at) { uint32_t v; memcpy(&v, at, 4); return ntohl(v); }
static char *be32(char *at, uint32_t v) { v = htonl(v); memcpy(at, &v, 4); return at + 4; }

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu_of(int pid) {
    char path[64], file[400];
    double sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = pid ? opendir(path) : NULL;
    if (!tasks) return 0;
    for (struct dirent *e; (e = readdir(tasks));) {
        unsigned long long ns;
        snprintf(file, sizeof file, "%s/%s/schedstat", path, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(file, "r");
        if (!f) continue;
        if (fscanf(f, "%llu", &ns) == 1) sum += ns * 1e-9;
        fclose(f);
    }
    closedir(tasks);
    return sum;
}

static double own_cpu(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_utime.tv_sec + r.ru_stime.tv_sec + 1e-6 * (r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static void say(int fd, const char *data, size_t n) {
    if (send(fd, data, n, MSG_NOSIGNAL) != (ssize_t)n) die("send");
}

/* A blocking read of one frame; its type. */
static int frame_of(int fd, char *data, size_t *size) {
    char head[8];
    if (recv(fd, head, 8, MSG_WAITALL) != 8) die("closed by the server");
    *size = rd32(head) - 4;
    if (*size && recv(fd, data, *size, MSG_WAITALL) != (ssize_t)*size) die("closed by the server");
    return rd32(head + 4);
}

static int dial(int port, int from, const char *topic, int ready) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in mine = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + from)};
    if (fd < 0) die("socket");
    if (from && bind(fd, (void *)&mine, sizeof mine)) die("bind");
    if (connect(fd, (void *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    say(fd, "  V2", 4);
    if (ready) {
        char line[200], answer[4096];
        size_t n = snprintf(line, sizeof line, "SUB %s ch\n", topic);
        say(fd, line, n);
        if (frame_of(fd, answer, &n)) { fprintf(stderr, "SUB: %.*s\n", (int)n, answer); exit(1); }
        n = snprintf(line, sizeof line, "RDY %d\n", ready);
        say(fd, line, n);
    }
    return fd;
}

/* One PUB or MPUB. */
static size_t command_of(char *to, const char *topic, int size, int batch) {
    char *at = to + sprintf(to, "%s %s\n", batch > 1 ? "MPUB" : "PUB", topic);
    if (batch > 1) at = be32(be32(at, 4 + batch * (4 + size)), batch);
    for (int k = 0; k < batch; k++) {
        at = be32(at, size);
        for (int i = 0; i < size; i++) *at++ = 'a' + (i * 7 + k) % 26;
    }
    return at - to;
}

/* What has gathered for a peer is written as far as it takes it. */
static void flush(struct peer *q) {
    if (q->out_end == q->out_at) return;
    ssize_t z = send(q->fd, q->out + q->out_at, q->out_end - q->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (z < 0 && errno != EAGAIN) die("send");
    if (z > 0) q->out_at += z;
    if (q->out_at == q->out_end) q->out_at = q->out_end = 0;
    else if (q->out_at > OUT / 2) {
        memmove(q->out, q->out + q->out_at, q->out_end - q->out_at);
        q->out_end -= q->out_at; q->out_at = 0;
    }
}

static void put(struct peer *q, const void *data, size_t n) {
    if (q->out_end + n > OUT) { fprintf(stderr, "a peer does not read\n"); exit(1); }
    memcpy(q->out + q->out_end, data, n);
    q->out_end += n;
}

/* ---- the floor ---------------------------------------------------------------------------------------------------- */

enum { RING = 64 << 20 };
static char *ring;
static size_t ring_at;
static struct peer *readers[64];
static int reader_count, turn;
static uint64_t number;

/* A message is copied once where it is kept, and once to a reader. */
static void pass_on(const char *body, uint32_t n) {
    if (ring_at + n > RING) ring_at = 0;
    memcpy(ring + ring_at, body, n);
    if (reader_count) {
        char head[34];
        struct peer *q = readers[turn++ % reader_count];
        be32(be32(head, 30 + n), 2); memset(head + 8, 0, 9); head[17] = 1;
        for (uint64_t i = 0, v = ++number; i < 16; i++, v >>= 4) head[33 - i] = "0123456789abcdef"[v & 15];
        put(q, head, 34); put(q, ring + ring_at, n);
    }
    ring_at += n;
}

/* Commands that are whole; how many bytes that were. */
static size_t obey(struct peer *q) {
    static const char ok[10] = {0, 0, 0, 6, 0, 0, 0, 0, 'O', 'K'};
    size_t p = 0;
    if (!q->begun) { if (q->filled < 4) return 0; q->begun = 1; p = 4; }
    for (;;) {
        char *x = q->in + p, *end = memchr(x, '\n', q->filled - p);
        if (!end) return p;
        size_t line = end + 1 - x;
        if (x[0] == 'P' || x[0] == 'M') {
            if (q->filled - p < line + 4) return p;
            uint32_t n = rd32(x + line);
            if (q->filled - p < line + 4 + n) return p;
            if (x[0] == 'P') pass_on(x + line + 4, n);
            else {
                char *m = x + line + 8;
                for (uint32_t k = rd32(x + line + 4); k; k--, m += 4 + rd32(m)) pass_on(m + 4, rd32(m));
            }
            put(q, ok, 10);
            line += 4 + n;
        } else if (x[0] == 'S') { readers[reader_count++] = q; put(q, ok, 10); }
        p += line; /* RDY, FIN and NOP have no answer */
    }
}

static _Noreturn void sink(int port) {
    int one = 1, s = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(s, (void *)&a, sizeof a) || listen(s, 128)) die("listen");
    ring = malloc(RING);
    memset(ring, 1, RING);
    struct epoll_event ev = {.events = EPOLLIN}, evs[64];
    epoll_ctl(ep, EPOLL_CTL_ADD, s, &ev);
    puts("ready"); fflush(stdout);
    for (;;) {
        int k = epoll_wait(ep, evs, 64, -1);
        for (int i = 0; i < k; i++) {
            struct peer *q = evs[i].data.ptr;
            if (!q) {
                q = calloc(1, sizeof *q);
                q->fd = accept4(s, NULL, NULL, SOCK_NONBLOCK);
                setsockopt(q->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                q->in = malloc(IN); q->out = malloc(OUT);
                struct epoll_event add = {.events = EPOLLIN, .data.ptr = q};
                epoll_ctl(ep, EPOLL_CTL_ADD, q->fd, &add);
                continue;
            }
            ssize_t z = recv(q->fd, q->in + q->filled, q->filled < IN - (1 << 18) ? 1 << 18 : IN - q->filled, 0);
            if (z <= 0) {
                if (z < 0 && errno == EAGAIN) continue;
                exit(0); /* one load, then the next sink */
            }
            q->filled += z;
            size_t p = obey(q);
            memmove(q->in, q->in + p, q->filled - p); q->filled -= p;
            if (!q->consumes) flush(q);
        }
        for (int i = 0; i < reader_count; i++) flush(readers[i]);
    }
}

/* ---- one message at a time ---------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) { return *(double *)a > *(double *)b ? 1 : -1; }

static void latency(int port, const char *topic, int count, int size) {
    int consumer = dial(port, 0, topic, 100), producer = dial(port, 0, topic, 0);
    char *command = malloc(size + 200), data[1 << 16];
    size_t n = command_of(command, topic, size, 1);
    double *took = malloc(count * sizeof *took), *answer = malloc(count * sizeof *took);
    srandom(1);
    for (int i = -20; i < count; i++) { /* twenty to warm up */
        usleep(3000 + random() % 40000);
        size_t got;
        double begun = seconds();
        say(producer, command, n);
        while (frame_of(consumer, data, &got) != 2) say(consumer, "NOP\n", 4);
        double end = seconds();
        char fin[22] = "FIN ";
        memcpy(fin + 4, data + 10, 16); fin[20] = '\n';
        say(consumer, fin, 21);
        while (frame_of(producer, data, &got) || got != 2) say(producer, "NOP\n", 4);
        if (i >= 0) { took[i] = (end - begun) * 1e3; answer[i] = (seconds() - begun) * 1e3; }
    }
    qsort(took, count, sizeof *took, by_size); qsort(answer, count, sizeof *answer, by_size);
    printf("{\"messages\":%d,\"median_ms\":%.3f,\"p90_ms\":%.3f,\"p99_ms\":%.3f,\"most_ms\":%.3f,\"answer_median_ms\":%.3f}\n", count,
           took[count / 2], took[count * 9 / 10], took[count * 99 / 100], took[count - 1], answer[count / 2]);
}

static void idle(int port, int count) {
    struct rlimit most;
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &most);
    char data[4096];
    const char *about = "{\"feature_negotiation\":true,\"heartbeat_interval\":60000,\"client_id\":\"idle\"}";
    for (int i = 0; i < count; i++) {
        int fd = dial(port, i / PER_ADDRESS, "", 0); /* an address has 28,000 ports or so */
        char hello[200], *at = hello + sprintf(hello, "IDENTIFY\n");
        at = be32(at, strlen(about));
        memcpy(at, about, strlen(about));
        say(fd, hello, at + strlen(about) - hello);
        size_t n;
        if (frame_of(fd, data, &n)) { fprintf(stderr, "IDENTIFY: %.*s\n", (int)n, data); exit(1); }
    }
    puts("ready"); fflush(stdout);
    while (read(0, data, sizeof data) > 0) {}
}

/* ---- load --------------------------------------------------------------------------------------------------------- */

static uint64_t delivered, acked;

/* Frames that came: answers are counted, messages finished, heartbeats answered. */
static void hear(struct peer *q, int batch) {
    for (;;) {
        ssize_t z = recv(q->fd, q->in + q->filled, IN - q->filled, 0);
        if (z <= 0) { if (z < 0 && errno == EAGAIN) break; fprintf(stderr, "closed by the server\n"); exit(2); }
        q->filled += z;
        size_t p = 0;
        while (q->filled - p >= 8) {
            char *x = q->in + p;
            size_t n = 4 + rd32(x);
            if (q->filled - p < n) break;
            uint32_t type = rd32(x + 4);
            if (type == 2) {
                char fin[21] = "FIN ";
                memcpy(fin + 4, x + 18, 16); fin[20] = '\n';
                put(q, fin, 21);
                delivered++;
            } else if (type == 1) { fprintf(stderr, "refused: %.*s\n", (int)n - 8, x + 8); exit(3); }
            else if (n == 10) { q->answered++; acked += batch; }
            else put(q, "NOP\n", 4);
            p += n;
        }
        memmove(q->in, q->in + p, q->filled - p); q->filled -= p;
    }
    flush(q);
}

int main(int argc, char **argv) {
    int port = 4150, producers = 1, consumers = 0, size = 200, batch = 1, ready = 2500, pid = 0, c;
    long window = 1000, depth = 20000;
    uint64_t limit = 0, published = 0;
    double secs = 2, warm = 0.5;
    const char *topic = "bench", *mode = argc > 1 ? argv[1] : "";
    optind = 2;
    while ((c = getopt(argc, argv, "p:P:C:w:s:b:t:W:r:T:i:n:d:")) != -1) switch (c) {
        case 'p': port = atoi(optarg); break;      case 'P': producers = atoi(optarg); break;
        case 'C': consumers = atoi(optarg); break; case 'w': window = atol(optarg); break;
        case 's': size = atoi(optarg); break;      case 'b': batch = atoi(optarg); break;
        case 't': secs = atof(optarg); break;      case 'W': warm = atof(optarg); break;
        case 'r': ready = atoi(optarg); break;     case 'T': topic = optarg; break;
        case 'i': pid = atoi(optarg); break;       case 'n': limit = strtoull(optarg, 0, 10); break;
        case 'd': depth = atol(optarg); break;     default: return 2;
    }
    if (!strcmp(mode, "sink")) sink(port);
    if (!strcmp(mode, "latency")) { latency(port, topic, limit ? limit : 300, size); return 0; }
    if (!strcmp(mode, "idle")) { idle(port, limit); return 0; }
    if (strcmp(mode, "load")) { fprintf(stderr, "load, latency, idle or sink?\n"); return 2; }
    char *one = malloc((size_t)batch * (size + 4) + 200);
    size_t command = command_of(one, topic, size, batch), fit = command > CHUNK ? 1 : CHUNK / command, chunk = fit * command;
    char *commands = malloc(2 * chunk);
    for (size_t k = 0; k < 2 * fit; k++) memcpy(commands + k * command, one, command);
    int total = producers + consumers, ep = epoll_create1(0);
    struct peer *peers = calloc(total, sizeof *peers);
    for (int i = total - 1; i >= 0; i--) { /* consumers first: what is published is owed to their channel */
        struct peer *q = &peers[i];
        q->consumes = i >= producers;
        q->fd = dial(port, 0, topic, q->consumes ? ready : 0);
        q->in = malloc(IN); q->out = malloc(OUT);
        fcntl(q->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event add = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = q};
        epoll_ctl(ep, EPOLL_CTL_ADD, q->fd, &add);
    }
    uint64_t acked0 = 0, delivered0 = 0, loops = 0;
    double begun = seconds(), measured = 0, cpu0 = 0, mine0 = 0, wall = 0;
    struct epoll_event evs[64];
    for (;;) {
        int k = epoll_wait(ep, evs, 64, 1);
        if (!k || (++loops & 15) == 0) {
            double now = seconds();
            if (!measured && now - begun >= warm) {
                measured = now; acked0 = acked; delivered0 = delivered; cpu0 = cpu_of(pid); mine0 = own_cpu();
            }
            if (measured && (now - measured >= secs || (limit && (producers ? acked : delivered) >= limit))) { wall = now - measured; break; }
        }
        for (int i = 0; i < k; i++) hear(evs[i].data.ptr, batch);
        for (int i = 0; i < producers; i++) {
            struct peer *q = &peers[i];
            for (;;) {
                int64_t room = (int64_t)(window * command) - (int64_t)(q->sent - q->answered * command);
                if (consumers) {
                    int64_t rest = (depth - (int64_t)(published - delivered)) / batch * (int64_t)command;
                    if (rest < room) room = rest;
                }
                if (q->sent % command) room = room < (int64_t)command ? (int64_t)(command - q->sent % command) : room;
                else if (limit && published >= limit) break;
                else if (room < (int64_t)command) break;
                size_t n = room < (int64_t)chunk ? (size_t)room : chunk;
                ssize_t z = send(q->fd, commands + q->sent % chunk, n, MSG_NOSIGNAL);
                if (z <= 0) break;
                uint64_t before = q->sent / command;
                q->sent += z;
                published += (q->sent / command - before) * batch;
                if ((size_t)z < n) break;
            }
        }
    }
    double mine = own_cpu() - mine0, cpu = cpu_of(pid) - cpu0;
    uint64_t m = consumers ? delivered - delivered0 : acked - acked0;
    printf("{\"messages\":%llu,\"rate\":%.0f,\"cpu_us\":%.3f,\"server_load\":%.2f,\"client_cpu_us\":%.3f,\"client_load\":%.2f,\"refused\":0}\n",
           (unsigned long long)m, m / wall, m ? cpu * 1e6 / m : 0, cpu / wall, m ? mine * 1e6 / m : 0, mine / wall);
    return 0;
}
