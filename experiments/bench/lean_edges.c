/* Lean edges: K of them in one program on raw sockets, each with one gradient on its way.
 *
 *     lean_edges PORT RUN K N WARM SECONDS PATIENCE HELLO [PID...]
 *
 * Compiled with -DSEALED they seal their gradients and open the seals of their models, and HELLO is the name of a file
 * with a line for each edge: its signed hello, its nonce, the key of gradients, and that of models.
 *
 * They say HELLO (the bytes of a hello as hexadecimal digits), answer every model with the next sequence of a prepared
 * vector, and end WARM + SECONDS after every edge had a model. One line of JSON tells what those last SECONDS brought:
 * answered gradients, and the processor time of the edges and of other processes. Gradients go at QoS 0; what has no
 * answer for five seconds is sent again. experiments/bench/clouds.py compiles it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef SEALED
#include <openssl/evp.h>
enum { SEAL = 32 };
#else
enum { SEAL = 0 };
#endif

enum { HEADER = 40, ROOM = 512, READ_AHEAD = 1 << 18, MOST_PIDS = 8 };
#define RESEND 5.0 /* seconds, as the scenario's resend_after is by default */

struct edge {
    int fd, waiting;             /* whether the socket is full */
    uint8_t head[ROOM];          /* the gradient's packet before its vector */
    size_t head_bytes, out;      /* out: bytes of the packet that are sent */
    uint8_t in[ROOM];            /* the beginning of the packet that comes */
    size_t in_bytes, left;       /* bytes of the beginning that are there; bytes behind it that are still to come */
    int hellos;
    uint64_t sequence;           /* of its last gradient; 0: it waits for its first model */
    double tried;                /* when something was last sent */
    char topic[ROOM / 2];        /* of its hello */
#ifdef SEALED
    uint8_t hello[2048], nonce[8], keys[2][32], seal[SEAL];
    size_t hello_bytes, whole_bytes;
    uint8_t *whole;              /* the packet that comes */
    uint64_t sealed;             /* counter of its last gradient */
#endif
};

static int count, poller, begun;
static struct edge *edges;
static size_t vector_bytes;
static float *vectors[2]; /* in turn: x stays where it is */
static uint8_t hello[8192], scratch[READ_AHEAD];
static size_t hello_bytes;
static uint64_t answered, resent;

static void fail(const char *what) {
    printf("{\"error\": \"%s: %s\"}\n", what, errno ? strerror(errno) : "the connection is gone");
    exit(1);
}

static double seconds_of(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t)) fail("clock");
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double now(void) { return seconds_of(CLOCK_MONOTONIC); }

static uint8_t *put_length(uint8_t *at, size_t length) {
    do *at++ = (length & 127) | (length > 127 ? 128 : 0);
    while (length >>= 7);
    return at;
}

static uint8_t *put_text(uint8_t *at, const char *text) {
    size_t length = strlen(text);
    *at++ = length >> 8, *at++ = length & 255;
    return (uint8_t *)memcpy(at, text, length) + length;
}

/* -- what an edge sends ------------------------------------------------------------------------------------------- */

static void watch(struct edge *edge, int how, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = edge};
    if (epoll_ctl(poller, how, edge->fd, &event)) fail("epoll_ctl");
}

#ifdef SEALED
static EVP_CIPHER_CTX *cipher;

/* The tag of AES-256-GCM over a message in two parts; its nonce is the counter. */
static void tag_of(const uint8_t key[32], uint64_t counter, const void *a, size_t m, const void *b, size_t n, uint8_t tag[16]) {
    uint8_t once[12] = {0};
    int out;
    for (int k = 0; k < 8; k++) once[4 + k] = counter >> (56 - 8 * k);
    if (!cipher) cipher = EVP_CIPHER_CTX_new();
    if (EVP_EncryptInit_ex(cipher, EVP_aes_256_gcm(), 0, key, once) != 1 || EVP_EncryptUpdate(cipher, 0, &out, a, m) != 1 ||
        EVP_EncryptUpdate(cipher, 0, &out, b, n) != 1 || EVP_EncryptFinal_ex(cipher, tag, &out) != 1 ||
        EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, 16, tag) != 1) fail("tag");
}

static void seal(struct edge *edge) {
    memcpy(edge->seal, edge->nonce, 8);
    edge->sealed++;
    for (int k = 0; k < 8; k++) edge->seal[8 + k] = edge->sealed >> (56 - 8 * k);
    tag_of(edge->keys[0], edge->sealed, edge->head + edge->head_bytes - HEADER, HEADER, vectors[edge->sequence & 1],
           vector_bytes, edge->seal + 16);
}

static uint64_t number_at(const uint8_t *at);

/* Whether a model of the packet that has come is sealed for this edge. */
static int opens(struct edge *edge, size_t at) {
    uint8_t tag[16], *seal = edge->whole + edge->whole_bytes - SEAL;
    tag_of(edge->keys[1], number_at(seal + 8), edge->whole + at, edge->whole_bytes - SEAL - at, "", 0, tag);
    return edge->whole_bytes > at + SEAL && !memcmp(seal, edge->nonce, 8) && !memcmp(seal + 16, tag, 16);
}
#endif

static void push(struct edge *edge) {
    size_t total = edge->head_bytes + vector_bytes + SEAL;
    while (edge->out < total) {
        size_t head = edge->out < edge->head_bytes ? edge->head_bytes - edge->out : 0;
        size_t rest = total - edge->out - head, behind = rest < SEAL ? rest : SEAL, body = rest - behind;
        struct iovec parts[3] = {{edge->head + edge->out, head},
                                 {(char *)vectors[edge->sequence & 1] + vector_bytes - body, body}};
#ifdef SEALED
        parts[2] = (struct iovec){edge->seal + SEAL - behind, behind};
#endif
        struct msghdr message = {.msg_iov = parts + !head, .msg_iovlen = 1 + !!head + !!SEAL};
        ssize_t sent = sendmsg(edge->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            if (!edge->waiting) watch(edge, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            edge->waiting = 1;
            return;
        }
        if (sent < 0) fail("send");
        edge->out += sent;
    }
    if (edge->waiting) watch(edge, EPOLL_CTL_MOD, EPOLLIN);
    edge->waiting = 0;
}

static void send_all(struct edge *edge, const uint8_t *bytes, size_t size) {
    if (send(edge->fd, bytes, size, MSG_NOSIGNAL) != (ssize_t)size) fail("send"); /* small, and nothing is before it */
}

static void say_hello(struct edge *edge) {
    static uint8_t packet[sizeof hello + ROOM];
#ifdef SEALED /* the same hello again: it is signed */
    memcpy(hello, edge->hello, hello_bytes = edge->hello_bytes);
    uint8_t *number = 0, *at = packet;
#else
    uint8_t *number = memmem(hello, hello_bytes, "number", 6), *at = packet;
#endif
    *at++ = 0x32; /* publish, QoS 1 */
    at = put_length(at, 2 + strlen(edge->topic) + 2 + hello_bytes);
    at = put_text(at, edge->topic);
    *at++ = 0, *at++ = 1; /* packet id */
    memcpy(at, hello, hello_bytes);
    if (number) at[number + 6 - hello] += edge->hellos++; /* a MessagePack integer below 128 */
    send_all(edge, packet, at + hello_bytes - packet);
    edge->tried = now();
}

static void join(struct edge *edge, int k, const char *run, struct sockaddr_in *broker) {
    char name[ROOM / 4], model[ROOM / 2];
    uint8_t packet[2 * ROOM] = {0x10}, *at = packet + 1;
    int one = 1;
    edge->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (edge->fd < 0 || connect(edge->fd, (struct sockaddr *)broker, sizeof *broker)) fail("connect");
    setsockopt(edge->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    snprintf(name, sizeof name, "%s:edge-%d", run, k);
    snprintf(model, sizeof model, "mapa/v1/%s/edge/edge-%d/model", run, k);
    snprintf(edge->topic, sizeof edge->topic, "mapa/v1/%s/edge/edge-%d/gradient", run, k);
    edge->head[0] = 0x30; /* publish, QoS 0 */
    edge->head_bytes = put_text(put_length(edge->head + 1, 2 + strlen(edge->topic) + HEADER + vector_bytes + SEAL),
                                edge->topic) - edge->head;
    snprintf(edge->topic, sizeof edge->topic, "mapa/v1/%s/edge/edge-%d/hello", run, k);
    at = put_text(put_length(at, 6 + 4 + 2 + strlen(name)), "MQTT");
    *at++ = 4, *at++ = 2, *at++ = 0, *at++ = 0; /* 3.1.1, clean session, no keep-alive */
    at = put_text(at, name);
    *at++ = 0x82; /* subscribe */
    at = put_length(at, 2 + 2 + strlen(model) + 1);
    *at++ = 0, *at++ = 1; /* packet id */
    at = put_text(at, model);
    *at++ = 0; /* QoS 0 */
    send_all(edge, packet, at - packet);
    /* a broker that greets has accepted: beyond its backlog the next one would wait a second for its SYN's repetition */
    if (recv(edge->fd, packet, 4, MSG_WAITALL) != 4 || packet[0] != 0x20 || packet[3]) fail("greeting");
    say_hello(edge);
    if (fcntl(edge->fd, F_SETFL, O_NONBLOCK)) fail("fcntl");
    watch(edge, EPOLL_CTL_ADD, EPOLLIN);
}

/* -- what an edge gets -------------------------------------------------------------------------------------------- */

static uint64_t number_at(const uint8_t *at) {
    uint64_t value = 0;
    for (int k = 0; k < 8; k++) value = value << 8 | at[k];
    return value;
}

/* Header of a model, then of a gradient: mark 4, tag, t | sequence 8, tag, incarnation | version 8, tag,
 * acknowledged | incarnation 8, tag, sensitivity 8. */
static void on_model(struct edge *edge, const uint8_t *model) {
    uint8_t *gradient = edge->head + edge->head_bytes - (edge->sequence ? HEADER : 0);
    uint64_t acknowledged = number_at(model + 23);
    if (memcmp(model, "\x96\x01\xa1m", 4) || acknowledged < edge->sequence || edge->waiting)
        return; /* a second answer, or one to something older */
    if (!edge->sequence) begun++, edge->head_bytes += HEADER;
    else answered++;
    edge->sequence = acknowledged + 1;
    memcpy(gradient, "\x96\x01\xa1g\xcf", 5);
    for (int k = 0; k < 8; k++) gradient[5 + k] = edge->sequence >> (56 - 8 * k);
    gradient[13] = gradient[22] = 0xcf;
    memcpy(gradient + 14, model + 5, 8);
    memcpy(gradient + 23, model + 14, 8);
    memcpy(gradient + 31, model + 31, 9);
    edge->out = 0;
    edge->tried = now();
#ifdef SEALED
    seal(edge);
#endif
    push(edge);
}

/* The beginning of a packet is kept; of a vector nothing but its length counts. */
static void take(struct edge *edge, const uint8_t *bytes, size_t size) {
    while (size) {
        if (!edge->left) { /* of a beginning: enough to know all of the packet's length, then of its topic and header */
            size_t length = 0, at = 1, known = 0, wanted = 2;
            while (at < edge->in_bytes && !known) {
                length |= (size_t)(edge->in[at] & 127) << 7 * (at - 1);
                known = !(edge->in[at++] & 128);
            }
            if (known) wanted = at + length < ROOM ? at + length : ROOM;
            else wanted = edge->in_bytes + 1 > 2 ? edge->in_bytes + 1 : 2;
            size_t part = wanted - edge->in_bytes < size ? wanted - edge->in_bytes : size;
            memcpy(edge->in + edge->in_bytes, bytes, part);
#ifdef SEALED
            memcpy(edge->whole + edge->in_bytes, bytes, part);
            edge->whole_bytes = edge->in_bytes + part;
#endif
            edge->in_bytes += part, bytes += part, size -= part;
            if (!known || edge->in_bytes < wanted) continue;
            edge->left = at + length - wanted;
        }
        size_t part = edge->left < size ? edge->left : size;
#ifdef SEALED
        if (edge->whole_bytes + part > vector_bytes + 2 * ROOM) fail("a packet of another size");
        memcpy(edge->whole + edge->whole_bytes, bytes, part);
        edge->whole_bytes += part;
#endif
        edge->left -= part, bytes += part, size -= part;
        if (edge->left) continue;
        if (edge->in[0] >> 4 == 3) {
            size_t at = 1;
            while (edge->in[at++] & 128) {}
            at += 2 + (edge->in[at] << 8 | edge->in[at + 1]);
#ifdef SEALED
            if (!opens(edge, at)) fail("a model that was not sealed for this edge");
#endif
            if (at + HEADER <= edge->in_bytes) on_model(edge, edge->in + at);
        }
        edge->in_bytes = 0;
    }
}

/* Send again what has had no answer for too long. */
static void look(double time) {
    for (struct edge *edge = edges; edge < edges + count; edge++) {
        if (edge->waiting || time < edge->tried + RESEND) continue;
        resent++, edge->tried = time;
#ifdef SEALED
        if (edge->sequence) seal(edge);
#endif
        if (edge->sequence) edge->out = 0, push(edge);
        else say_hello(edge);
    }
}

int main(int argc, char **argv) {
    if (argc < 9 || argc > 9 + MOST_PIDS) return fprintf(stderr, "lean_edges PORT RUN K N WARM SECONDS PATIENCE HELLO [PID...]\n"), 2;
    struct sockaddr_in broker = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rlimit files;
    struct epoll_event events[256];
    double warm = atof(argv[5]), length = atof(argv[6]), patience = atof(argv[7]), spent[MOST_PIDS + 1] = {0};
    clockid_t clocks[MOST_PIDS + 1] = {CLOCK_PROCESS_CPUTIME_ID};
    count = atoi(argv[3]), vector_bytes = 4 * atol(argv[4]);
    for (int k = 9; k < argc; k++)
        if ((errno = clock_getcpuclockid(atoi(argv[k]), clocks + k - 8))) fail("no such process");
    edges = calloc(count, sizeof *edges);
#ifdef SEALED
    FILE *file = fopen(argv[8], "r");
    static char text[5000];
    for (int k = 0; k < count; k++) {
        struct edge *edge = edges + k;
        uint8_t *parts[4] = {edge->hello, edge->nonce, edge->keys[0], edge->keys[1]};
        edge->whole = malloc(vector_bytes + 2 * ROOM);
        for (int part = 0; part < 4; part++) {
            if (!file || fscanf(file, "%4999s", text) != 1) fail("file of hellos");
            size_t bytes = strlen(text) / 2, most[4] = {sizeof edge->hello, 8, 32, 32};
            if (bytes > most[part]) fail("file of hellos");
            for (size_t n = 0; n < bytes; n++) sscanf(text + 2 * n, "%2hhx", parts[part] + n);
            if (!part) edge->hello_bytes = bytes;
        }
    }
    fclose(file);
#else
    for (const char *digits = argv[8]; digits[0] && digits[1] && hello_bytes < sizeof hello; digits += 2)
        sscanf(digits, "%2hhx", hello + hello_bytes++);
#endif
    getrlimit(RLIMIT_NOFILE, &files), files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
    for (int sign = 0; sign < 2; sign++) {
        vectors[sign] = malloc(vector_bytes);
        for (size_t n = 0; n < vector_bytes / 4; n++) vectors[sign][n] = sign ? 1e-3f : -1e-3f;
    }
    if ((poller = epoll_create1(0)) < 0 || !edges || !vectors[1]) fail("no room");
    double came = now(), first = 0, from = 0, time = came, looked = came;
    uint64_t before = 0;
    for (int k = 0; k < count; k++) join(edges + k, k, argv[2], &broker);
    while (!from || time < from + length) {
        int ready = epoll_wait(poller, events, 256, 100);
        for (int k = 0; k < ready; k++) {
            struct edge *edge = events[k].data.ptr;
            if (events[k].events & EPOLLOUT) push(edge);
            if (!(events[k].events & ~EPOLLOUT)) continue;
            ssize_t size = recv(edge->fd, scratch, sizeof scratch, 0);
            if (size == 0 || (size < 0 && errno != EAGAIN)) fail(size ? "recv" : (errno = 0, "recv"));
            if (size > 0) take(edge, scratch, size);
        }
        time = now();
        if (time > looked + 1) look(looked = time);
        if (!first && begun == count) first = time;
        if (!from && time > came + patience) return printf("{\"error\": \"%d of %d edges had a model\"}\n", begun, count), 1;
        if (!from && first && time > first + warm) {
            from = time, before = answered;
            for (int k = 0; k <= argc - 9; k++) spent[k] -= seconds_of(clocks[k]);
        }
    }
    printf("{\"updates\": %lu, \"seconds\": %.6f, \"first\": %.3f, \"resent\": %lu, \"cpu\": [", answered - before, time - from, first - came, resent);
    for (int k = 0; k <= argc - 9; k++) printf("%s%.6f", k ? ", " : "", spent[k] + seconds_of(clocks[k]));
    printf("]}\n");
    return 0;
}
