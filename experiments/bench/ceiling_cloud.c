/* The ceiling: a cloud that does x <- x - rate g and answers, and nothing else: no verdicts, no records.
 *
 *     ceiling_cloud PORT RUN K N [LOG]
 *
 * Its edges are `edge-0` to `edge-(K-1)`; the first models go out when all have said hello. LOG is a file that gets a
 * segment of the gradient log (common/records/gradient_log.py), with zlib's CRC-32. On a raw socket; with
 * -DLIBMOSQUITTO -lmosquitto on that library, as most programs in C would do it. experiments/bench/clouds.py compiles it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>
#ifdef LIBMOSQUITTO
#include <mosquitto.h>
#endif

enum { HEADER = 40, SEGMENT = 1 << 27, NAME = 256 };
static const float rate = 1e-3f;
static uint64_t t = 1;
static int count, here, log_file = -1;
static size_t vector_bytes, written;
static float *x;
static const char *run;

static void fail(const char *what) {
    fprintf(stderr, "ceiling_cloud: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* -- the log ------------------------------------------------------------------------------------------------------ */

static void begin_segment(void) {
    uint8_t head[40] = "MAPALOG\n";
    uint32_t one = 1, crc;
    uint64_t incarnation = 1, dimension = vector_bytes / 4;
    memcpy(head + 8, &one, 4), memcpy(head + 12, &one, 4);
    memcpy(head + 16, &incarnation, 8), memcpy(head + 24, &dimension, 8);
    crc = crc32(0, head, 36), memcpy(head + 36, &crc, 4);
    if (ftruncate(log_file, 0) || lseek(log_file, 0, SEEK_SET) || write(log_file, head, 40) != 40) fail("log");
    written = 40;
}

static void write_record(const char *name, size_t name_bytes, const uint8_t *body, size_t body_bytes) {
    static const uint8_t zeros[8];
    uint8_t front[32 + NAME] = "rec1";
    uint32_t size = body_bytes, crc;
    size_t named = 32 + ((name_bytes + 7) & ~7ul), fill = -body_bytes & 7;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = now.tv_sec + 1e-9 * now.tv_nsec;
    front[4] = 1, front[5] = name_bytes;
    memcpy(front + 8, &size, 4), memcpy(front + 12, &t, 8), memcpy(front + 20, &seconds, 8);
    memcpy(front + 32, name, name_bytes);
    crc = crc32(crc32(crc32(0, front, 28), front + 32, named - 32), body, body_bytes);
    if (fill) crc = crc32(crc, zeros, fill);
    memcpy(front + 28, &crc, 4);
    struct iovec parts[3] = {{front, named}, {(void *)body, body_bytes}, {(void *)zeros, fill}};
    if (writev(log_file, parts, 3) != (ssize_t)(named + body_bytes + fill)) fail("log");
    if ((written += named + body_bytes + fill) > SEGMENT) begin_segment();
}

/* -- the protocol ------------------------------------------------------------------------------------------------- */

static void put_number(uint8_t *at, uint8_t tag, uint64_t value) {
    value = htobe64(value);
    *at = tag, memcpy(at + 1, &value, 8);
}

static void send_model(const char *name, size_t name_bytes, uint64_t acknowledged);

static void on_message(const char *topic, size_t topic_bytes, const uint8_t *payload, size_t size) {
    const char *leaf = memrchr(topic, '/', topic_bytes), *name = leaf ? memrchr(topic, '/', leaf - topic) + 1 : 0;
    if (!leaf || leaf - name >= NAME) return;
    if (leaf[1] == 'h') {
        if (++here < count) return;
        char other[NAME];
        for (int k = 0; k < count; k++) send_model(other, snprintf(other, sizeof other, "edge-%d", k), 0);
        return;
    }
    if (size != HEADER + vector_bytes) return;
    uint64_t sequence;
    const float *gradient = (const float *)(payload + HEADER);
    memcpy(&sequence, payload + 5, 8);
    if (log_file >= 0) write_record(name, leaf - name, payload, size);
    for (size_t n = 0; n < vector_bytes / 4; n++) x[n] -= rate * gradient[n];
    t++;
    send_model(name, leaf - name, be64toh(sequence));
}

static void put_header(uint8_t *header, uint64_t acknowledged) {
    double sensitivity = 1.0;
    uint64_t bits;
    memcpy(&bits, &sensitivity, 8);
    memcpy(header, "\x96\x01\xa1m", 4);
    put_number(header + 4, 0xcf, t), put_number(header + 13, 0xcf, 1);
    put_number(header + 22, 0xcf, acknowledged), put_number(header + 31, 0xcb, bits);
}

#ifdef LIBMOSQUITTO
static struct mosquitto *client;

static struct { char name[NAME]; uint64_t acknowledged; } owed[1 << 16];
static int owing; /* answers: published behind the callback, the library sends at once, without its own select */

static void send_model(const char *name, size_t name_bytes, uint64_t acknowledged) {
    if (owing == 1 << 16) fail("more edges than there is room for");
    memcpy(owed[owing].name, name, name_bytes), owed[owing].name[name_bytes] = 0;
    owed[owing++].acknowledged = acknowledged;
}

static void answer(uint8_t *payload) {
    char topic[NAME + 128];
    for (int k = 0; k < owing; k++) {
        put_header(payload, owed[k].acknowledged);
        memcpy(payload + HEADER, x, vector_bytes);
        snprintf(topic, sizeof topic, "mapa/v1/%s/edge/%.255s/model", run, owed[k].name);
        if (mosquitto_publish(client, NULL, topic, HEADER + vector_bytes, payload, 0, false)) fail("publish");
    }
    owing = 0;
}

static void arrived(struct mosquitto *c, void *u, const struct mosquitto_message *message) {
    (void)c, (void)u;
    on_message(message->topic, strlen(message->topic), message->payload, message->payloadlen);
}

static void subscribed(struct mosquitto *c, void *u, int id, int n, const int *qos) {
    (void)c, (void)u, (void)n, (void)qos;
    if (id == 2) puts("ready"), fflush(stdout);
}

static void serve(int port) {
    const char *leaves[2] = {"gradient", "hello"};
    char filter[NAME];
    uint8_t *payload = malloc(HEADER + vector_bytes);
    mosquitto_lib_init();
    if (!payload || !(client = mosquitto_new(NULL, true, NULL))) fail("no room");
    mosquitto_int_option(client, MOSQ_OPT_TCP_NODELAY, 1);
    mosquitto_message_callback_set(client, arrived);
    mosquitto_subscribe_callback_set(client, subscribed);
    if (mosquitto_connect(client, "127.0.0.1", port, 0)) fail("connect");
    for (int k = 0; k < 2; k++) {
        snprintf(filter, sizeof filter, "mapa/v1/%s/edge/+/%s", run, leaves[k]);
        if (mosquitto_subscribe(client, NULL, filter, k)) fail("subscribe");
    }
    for (;;) {
        struct pollfd broker = {mosquitto_socket(client), POLLIN | (mosquitto_want_write(client) ? POLLOUT : 0), 0};
        if (poll(&broker, 1, -1) < 0) fail("poll");
        if (broker.revents & POLLOUT && mosquitto_loop_write(client, 1)) fail("send");
        if (broker.revents & POLLIN && mosquitto_loop_read(client, 1)) fail("recv");
        answer(payload);
    }
}
#else
static int broker;

static void send_all(struct iovec *parts, int n) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
    while (message.msg_iovlen) {
        ssize_t sent = sendmsg(broker, &message, MSG_NOSIGNAL); /* blocks: Mosquitto reads on, whatever we read */
        if (sent < 0) fail("send");
        while (message.msg_iovlen && sent >= (ssize_t)message.msg_iov->iov_len)
            sent -= message.msg_iov++->iov_len, message.msg_iovlen--;
        if (sent) message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent, message.msg_iov->iov_len -= sent;
    }
}

static void send_model(const char *name, size_t name_bytes, uint64_t acknowledged) {
    uint8_t head[2 * NAME] = {0x30}, *at = head + 1;
    char topic[NAME + 128];
    size_t length = snprintf(topic, sizeof topic, "mapa/v1/%s/edge/%.*s/model", run, (int)name_bytes, name);
    size_t rest = 2 + length + HEADER + vector_bytes;
    do *at++ = (rest & 127) | (rest > 127 ? 128 : 0);
    while (rest >>= 7);
    *at++ = length >> 8, *at++ = length & 255;
    memcpy(at, topic, length), at += length;
    put_header(at, acknowledged);
    send_all((struct iovec[]){{head, at + HEADER - head}, {x, vector_bytes}}, 2);
}

static uint8_t *put_filter(uint8_t *at, const char *leaf, int qos) {
    size_t length = sprintf((char *)at + 2, "mapa/v1/%s/edge/+/%s", run, leaf);
    *at++ = length >> 8, *at++ = length & 255;
    at[length] = qos;
    return at + length + 1;
}

static void serve(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    broker = socket(AF_INET, SOCK_STREAM, 0);
    if (broker < 0 || connect(broker, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(broker, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    uint8_t greeting[4 * NAME] = "\x10\x0c\0\4MQTT\4\2\0\0\0\0\x82\0\0\1", *at = greeting + 18;
    at = put_filter(put_filter(at, "gradient", 0), "hello", 1);
    greeting[15] = at - (greeting + 16); /* below 128: a run's name here is short */
    send_all((struct iovec[]){{greeting, at - greeting}}, 1);
    size_t room = 2 * (HEADER + vector_bytes) + (1 << 17), low = 0, high = 0;
    uint8_t *bytes = malloc(room);
    if (!bytes) fail("no room");
    for (;;) {
        if (low) memmove(bytes, bytes + low, high - low), high -= low, low = 0;
        ssize_t got = recv(broker, bytes + high, room - high, 0);
        if (got <= 0) fail("recv");
        for (high += got; high - low >= 2;) {
            uint8_t *packet = bytes + low, *p = packet + 1;
            size_t rest = 0, shift = 0;
            while (p < bytes + high && shift < 28) {
                rest |= (size_t)(*p & 127) << shift, shift += 7;
                if (!(*p++ & 128)) break;
            }
            if ((p[-1] & 128) || (size_t)(bytes + high - p) < rest) break;
            low = p + rest - bytes;
            if (packet[0] >> 4 == 9) puts("ready"), fflush(stdout); /* SUBACK */
            if (packet[0] >> 4 != 3) continue;
            size_t topic = p[0] << 8 | p[1], id = packet[0] & 6 ? 2 : 0;
            if (id) send_all((struct iovec[]){{(uint8_t[]){0x40, 2, p[2 + topic], p[3 + topic]}, 4}}, 1); /* PUBACK */
            on_message((char *)p + 2, topic, p + 2 + topic + id, rest - 2 - topic - id);
        }
    }
}
#endif

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "ceiling_cloud PORT RUN K N [LOG]\n"), 2;
    run = argv[2], count = atoi(argv[3]), vector_bytes = 4 * atol(argv[4]);
    x = calloc(vector_bytes, 1);
    if (argc > 5) {
        if ((log_file = open(argv[5], O_RDWR | O_CREAT | O_TRUNC, 0644)) < 0) fail(argv[5]);
        begin_segment();
    }
    serve(atoi(argv[1]));
}
