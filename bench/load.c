/* A load client for RocketMQ's remoting protocol, and the floor it is compared with: one thread, one epoll, no
 * allocation per message. bench/ compiles it when it is needed.
 *
 *   load send -p PORT -P connections -w window -s bytes -b batch -t seconds -W warm-up [-j] -T topic -q queues -i PID [-n messages]
 *   load read -p PORT -C connections -m messages-per-pull -T topic -t seconds -W warm-up -i PID      a backlog, from its start
 *   load both …                                                                                     sends and reads at once
 *   load sink -p PORT [-j]                       reads frames, copies their bodies, answers each: what loopback itself costs
 *                                                -j: by the request's own number, as clients want it that ask in JSON
 *
 * Prints one line of JSON. cpu_us is the server's CPU time per message over all its threads (schedstat).
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

#define READ_BYTES (4 << 20)
#define CHUNK 65536
#define DEPTH_MAX 20000 /* sent minus read, when both go on */

struct peer {
    int fd, reads, waiting_for_end;
    uint64_t sent, answered, offset;
    char *commands, *in;
    size_t command, chunk, filled;
};

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
        if (e->d_name[0] == '.') continue;
        snprintf(file, sizeof file, "%s/%s/schedstat", path, e->d_name);
        FILE *f = fopen(file, "r");
        if (!f) continue;
        if (fscanf(f, "%llu", &ns) == 1) sum += ns * 1e-9;
        fclose(f);
    }
    closedir(tasks);
    return sum;
}

static void die(const char *what) { perror(what); exit(1); }

static char *be32(char *at, uint32_t v) { v = htonl(v); memcpy(at, &v, 4); return at + 4; }
static char *be16(char *at, uint16_t v) { v = htons(v); memcpy(at, &v, 2); return at + 2; }
static uint32_t rd32(const char *at) { uint32_t v; memcpy(&v, at, 4); return ntohl(v); }

static char *field(char *at, const char *key, const char *value) {
    size_t k = strlen(key), v = strlen(value);
    at = be16(at, k); memcpy(at, key, k); at += k;
    at = be32(at, v); memcpy(at, value, v);
    return at + v;
}

/* A frame with a binary header. */
static size_t frame(char *to, int code, const char *ext, size_t ext_size, const char *body, size_t body_size) {
    char *at = be32(to, 4 + 21 + ext_size + body_size);
    at = be32(at, 1u << 24 | (21 + ext_size));
    at = be16(at, code); *at++ = 0; at = be16(at, 409);
    at = be32(be32(be32(at, 1), 0), 0);
    at = be32(at, ext_size); memcpy(at, ext, ext_size); at += ext_size;
    memcpy(at, body, body_size);
    return at + body_size - to;
}

static size_t json_frame(char *to, const char *header, const char *body, size_t body_size) {
    size_t n = strlen(header);
    char *at = be32(be32(to, 4 + n + body_size), n);
    memcpy(at, header, n); memcpy(at + n, body, body_size);
    return 8 + n + body_size;
}

static const char *PROPERTIES = "UNIQ_KEY\001AC1100022B18B4AAC2000000000A0001\002WAIT\001true\002TAGS\001TagA";
static const char *ESCAPED = "UNIQ_KEY\\u0001AC1100022B18B4AAC2000000000A0001\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA";

/* One SEND_MESSAGE_V2 (or SEND_BATCH_MESSAGE) with `size` bytes a body. */
static size_t send_command(char *to, int json, const char *topic, int queue, int size, int batch) {
    size_t properties = strlen(PROPERTIES), n = 0;
    char *body = malloc((size_t)batch * (size + properties + 32)), ext[2048], header[2048], *at = ext;
    for (int k = 0; k < batch; k++) {
        if (batch > 1) {
            be32(be32(be32(be32(be32(body + n, 22 + size + properties), 0), 0), 0), size);
            n += 20;
        }
        for (int i = 0; i < size; i++) body[n++] = 'a' + (i * 7 + k) % 26;
        if (batch > 1) {
            be16(body + n, properties); memcpy(body + n + 2, PROPERTIES, properties);
            n += 2 + properties;
        }
    }
    char number[16];
    snprintf(number, sizeof number, "%d", queue);
    int code = batch > 1 ? 320 : 310;
    if (json) {
        snprintf(header, sizeof header,
                 "{\"code\":%d,\"extFields\":{\"a\":\"bench\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%s\",\"f\":\"0\","
                 "\"g\":\"1700000000000\",\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\",\"k\":\"false\",\"m\":\"%s\"},\"flag\":0,"
                 "\"language\":\"JAVA\",\"opaque\":1,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}",
                 code, topic, number, ESCAPED, batch > 1 ? "true" : "false");
        n = json_frame(to, header, body, n);
    } else {
        at = field(at, "a", "bench"); at = field(at, "b", topic); at = field(at, "c", "TBW102"); at = field(at, "d", "4");
        at = field(at, "e", number); at = field(at, "f", "0"); at = field(at, "g", "1700000000000"); at = field(at, "h", "0");
        at = field(at, "i", PROPERTIES); at = field(at, "j", "0"); at = field(at, "k", "false");
        at = field(at, "m", batch > 1 ? "true" : "false");
        n = frame(to, code, ext, at - ext, body, n);
    }
    free(body);
    return n;
}

static void ask(struct peer *q, int code, const char *topic, int queue, int count) {
    char ext[512], number[24], out[700], *at = ext;
    snprintf(number, sizeof number, "%d", queue);
    at = field(at, "topic", topic); at = field(at, "queueId", number);
    if (code == 11) {
        snprintf(number, sizeof number, "%llu", (unsigned long long)q->offset);
        at = field(at, "queueOffset", number); at = field(at, "consumerGroup", "bench-readers");
        snprintf(number, sizeof number, "%d", count);
        at = field(at, "maxMsgNums", number); at = field(at, "sysFlag", "6"); at = field(at, "commitOffset", "0");
        at = field(at, "suspendTimeoutMillis", "15000"); at = field(at, "subscription", "*"); at = field(at, "subVersion", "0");
    }
    size_t n = frame(out, code, ext, at - ext, "", 0);
    if (send(q->fd, out, n, MSG_NOSIGNAL) != (ssize_t)n) die("send");
}

static int dial(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (void *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* Let an answer be that to the request with this JSON header. */
static void answer_to(char *answer, const char *header, size_t size) {
    static const char NAME[] = "\"opaque\":";
    const char *found = memmem(header, size, NAME, sizeof NAME - 1);
    if (found) be32(be32(answer + 13, strtoul(found + sizeof NAME - 1, NULL, 10)), 1);
}

/* The floor: cut frames, copy each body into a ring, answer as short as a broker's binary answer is. */
static _Noreturn void sink(int port, int json) {
    enum { RING = 64 << 20, IN = 1 << 18 };
    int one = 1, s = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(s, (void *)&a, sizeof a) || listen(s, 128)) die("listen");
    char *ring = malloc(RING), *out = malloc(1 << 20), answer[200];
    memset(ring, 1, RING);
    size_t ring_at = 0, answer_size;
    char ext[200], *e = field(field(field(ext, "msgId", "7F00000100002A9F0000000000000000"), "queueId", "0"), "queueOffset", "1234567");
    answer_size = frame(answer, 0, ext, e - ext, "", 0);
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
                q->in = malloc(IN + (1 << 20));
                struct epoll_event add = {.events = EPOLLIN, .data.ptr = q};
                epoll_ctl(ep, EPOLL_CTL_ADD, q->fd, &add);
                continue;
            }
            ssize_t z = recv(q->fd, q->in + q->filled, IN, 0);
            if (z <= 0) { if (z < 0 && errno == EAGAIN) continue; close(q->fd); free(q->in); free(q); continue; }
            q->filled += z;
            size_t p = 0, o = 0;
            while (q->filled - p >= 8) {
                size_t total = 4 + rd32(q->in + p), head = rd32(q->in + p + 4) & 0xFFFFFF;
                if (q->filled - p < total) break;
                size_t body = total - 8 - head;
                if (ring_at + body > RING) ring_at = 0;
                memcpy(ring + ring_at, q->in + p + 8 + head, body); ring_at += body;
                memcpy(out + o, answer, answer_size);
                if (json) answer_to(out + o, q->in + p + 8, head);
                o += answer_size;
                p += total;
            }
            memmove(q->in, q->in + p, q->filled - p); q->filled -= p;
            if (o && send(q->fd, out, o, MSG_NOSIGNAL) != (ssize_t)o) fprintf(stderr, "short send\n");
        }
    }
}

int main(int argc, char **argv) {
    int port = 10911, senders = 1, readers = 1, size = 200, batch = 1, pid = 0, json = 0, queues = 8, count = 32, c;
    long window = 100;
    uint64_t limit = 0;
    double secs = 2, warm = 0.5;
    const char *topic = "BenchmarkTest", *mode = argc > 1 ? argv[1] : "";
    optind = 2;
    while ((c = getopt(argc, argv, "p:P:C:w:s:b:t:W:jT:q:i:n:m:")) != -1) switch (c) {
        case 'p': port = atoi(optarg); break;      case 'P': senders = atoi(optarg); break;
        case 'C': readers = atoi(optarg); break;   case 'w': window = atol(optarg); break;
        case 's': size = atoi(optarg); break;      case 'b': batch = atoi(optarg); break;
        case 't': secs = atof(optarg); break;      case 'W': warm = atof(optarg); break;
        case 'j': json = 1; break;                 case 'T': topic = optarg; break;
        case 'q': queues = atoi(optarg); break;    case 'i': pid = atoi(optarg); break;
        case 'n': limit = strtoull(optarg, 0, 10); break; case 'm': count = atoi(optarg); break;
        default: return 2;
    }
    if (!strcmp(mode, "sink")) sink(port, json);
    int both = !strcmp(mode, "both");
    if (!both && strcmp(mode, "send") && strcmp(mode, "read")) { fprintf(stderr, "send, read, both or sink?\n"); return 2; }
    if (!strcmp(mode, "read")) senders = 0;
    if (!strcmp(mode, "send")) readers = 0;
    int total = senders + readers, ep = epoll_create1(0);
    struct peer *peers = calloc(total, sizeof *peers);
    for (int i = 0; i < total; i++) {
        struct peer *q = &peers[i];
        q->fd = dial(port); q->in = malloc(READ_BYTES); q->reads = i >= senders;
        if (!q->reads) {
            char *one = malloc((size_t)batch * (size + 200) + 4096);
            q->command = send_command(one, json, topic, i % (readers ? readers : queues), size, batch);
            size_t fit = q->command > CHUNK ? 1 : CHUNK / q->command;
            q->chunk = fit * q->command; q->commands = malloc(2 * q->chunk);
            for (size_t k = 0; k < 2 * fit; k++) memcpy(q->commands + k * q->command, one, q->command);
            free(one);
        }
        struct epoll_event add = {.events = EPOLLIN | (q->reads ? 0 : EPOLLOUT) | EPOLLET, .data.ptr = q};
        epoll_ctl(ep, EPOLL_CTL_ADD, q->fd, &add);
        if (q->reads && both) { q->waiting_for_end = 1; ask(q, 30, topic, i - senders, 0); }
        else if (q->reads) ask(q, 11, topic, i - senders, count);
    }
    uint64_t acked = 0, got = 0, got_bytes = 0, bad = 0, acked0 = 0, got0 = 0, loops = 0;
    double begun = seconds(), measured = 0, cpu0 = 0, wall = 0, next = begun + 1;
    struct rusage mine0 = {0}, mine1;
    uint64_t last_acked = 0, second[4096], nseconds = 0;
    struct epoll_event evs[64];
    for (;;) {
        int k = epoll_wait(ep, evs, 64, 1);
        if (!k || (++loops & 15) == 0) {
            double now = seconds();
            if (now >= next && nseconds < 4096) { second[nseconds++] = acked - last_acked; last_acked = acked; next += 1; }
            if (!measured && now - begun >= warm) {
                measured = now; acked0 = acked; got0 = got; cpu0 = cpu_of(pid); getrusage(RUSAGE_SELF, &mine0);
            }
            if (measured && (now - measured >= secs || (limit && (senders ? acked : got) >= limit))) { wall = now - measured; break; }
        }
        for (int i = 0; i < k; i++) {
            struct peer *q = evs[i].data.ptr;
            for (;;) {
                ssize_t z = recv(q->fd, q->in + q->filled, READ_BYTES - q->filled, 0);
                if (z <= 0) { if (z < 0 && errno == EAGAIN) break; fprintf(stderr, "closed by the server\n"); return 2; }
                q->filled += z;
                size_t p = 0;
                while (q->filled - p >= 8) {
                    size_t frame_size = 4 + rd32(q->in + p), head = rd32(q->in + p + 4), binary = head >> 24;
                    if (q->filled - p < frame_size) break;
                    head &= 0xFFFFFF;
                    char *h = q->in + p + 8, *body = h + head, *end = q->in + p + frame_size;
                    int code = binary ? (uint8_t)h[0] << 8 | (uint8_t)h[1] : !memmem(h, head, "\"code\":0", 8);
                    if (!q->reads) {
                        q->answered++; acked += batch;
                        if (code && !bad++) fprintf(stderr, "refused with %d: %.*s\n", code, (int)(head > 300 ? 300 : head), h);
                    } else if (q->waiting_for_end) {
                        char *at = memmem(h, head, "offset", 6);
                        if (at) q->offset = strtoull(at + 10, 0, 10);
                        q->waiting_for_end = 0;
                        ask(q, 11, topic, (int)(q - peers) - senders, count);
                    } else {
                        while (code == 0 && body + 4 <= end) { body += rd32(body); q->offset++; got++; }
                        got_bytes += frame_size;
                        ask(q, 11, topic, (int)(q - peers) - senders, count);
                    }
                    p += frame_size;
                }
                memmove(q->in, q->in + p, q->filled - p); q->filled -= p;
            }
        }
        for (int i = 0; i < senders; i++) {
            struct peer *q = &peers[i];
            for (;;) {
                int64_t room = (int64_t)(window * q->command) - (int64_t)(q->sent - q->answered * q->command);
                if (both && (int64_t)(acked - got) > DEPTH_MAX) room = 0;
                if (limit && acked >= limit) room = 0;
                if (room < (int64_t)q->command) break;
                size_t n = room < (int64_t)q->chunk ? (size_t)room : q->chunk;
                ssize_t z = send(q->fd, q->commands + q->sent % q->chunk, n, MSG_NOSIGNAL);
                if (z <= 0) break;
                q->sent += z;
                if ((size_t)z < n) break;
            }
        }
    }
    getrusage(RUSAGE_SELF, &mine1);
    double mine = mine1.ru_utime.tv_sec - mine0.ru_utime.tv_sec + mine1.ru_stime.tv_sec - mine0.ru_stime.tv_sec +
                  1e-6 * (mine1.ru_utime.tv_usec - mine0.ru_utime.tv_usec + mine1.ru_stime.tv_usec - mine0.ru_stime.tv_usec);
    uint64_t m = readers ? got - got0 : acked - acked0;
    double cpu = cpu_of(pid) - cpu0;
    printf("{\"messages\":%llu,\"rate\":%.0f,\"cpu_us\":%.3f,\"server_load\":%.2f,\"client_cpu_us\":%.3f,\"client_load\":%.2f,\"refused\":%llu,\"per_second\":[",
           (unsigned long long)m, m / wall, m ? cpu * 1e6 / m : 0, cpu / wall, m ? mine * 1e6 / m : 0, mine / wall, (unsigned long long)bad);
    for (uint64_t i = 0; i < nseconds; i++) printf("%s%llu", i ? "," : "", (unsigned long long)second[i]);
    puts("]}");
    return 0;
}
