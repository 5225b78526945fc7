/* The layer of `pingpong.c` without a library: one connection over TCP between two processes, whose sockets never
 * block. Both poll all the time. It is the floor of whatever goes over TCP: one system call for each message and end.
 *
 *   SOCKETS_AT=ADDRESS:PORT PMI_RANK=0|1 pingpong-sockets TESTS SIZES [FILE]
 *
 * Rank 1 listens there. A message is its length, 8 bytes, and its content; tags are not needed, as it arrives in order.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum { PATIENCE = 2000 /* requests of the connection, one every 5 ms */ };

typedef struct {
    void *buffer; /* NULL for one that was sent */
    size_t bytes;
} request;

static int rank, peer, size, wire;

static void fail(const char *what) {
    perror(what);
    _exit(EXIT_FAILURE);
}

static int connected(const struct sockaddr_in *at) {
    const struct timespec pause = {0, 5000000};
    int tries;
    for (tries = 0; tries < PATIENCE; tries++) {
        const int made = socket(AF_INET, SOCK_STREAM, 0);
        if (made < 0) {
            fail("pingpong-sockets: socket");
        }
        if (connect(made, (const struct sockaddr *)at, sizeof *at) == 0) {
            return made;
        }
        close(made);
        nanosleep(&pause, NULL);
    }
    fail("pingpong-sockets: connect");
    return -1;
}

static int accepted(const struct sockaddr_in *at) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    int made;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (listener < 0 || bind(listener, (const struct sockaddr *)at, sizeof *at) != 0 || listen(listener, 1) != 0) {
        fail("pingpong-sockets: listen");
    }
    made = accept(listener, NULL, NULL);
    if (made < 0) {
        fail("pingpong-sockets: accept");
    }
    close(listener);
    return made;
}

static void start(void) {
    const char *place = getenv("SOCKETS_AT"), *which = getenv("PMI_RANK");
    struct sockaddr_in at = {.sin_family = AF_INET};
    char address[INET_ADDRSTRLEN] = "";
    unsigned port = 0;
    const int on = 1;
    if (place == NULL || which == NULL || sscanf(place, "%15[0-9.]:%u", address, &port) != 2 ||
        inet_pton(AF_INET, address, &at.sin_addr) != 1) {
        fprintf(stderr, "pingpong-sockets: set SOCKETS_AT=ADDRESS:PORT and PMI_RANK\n");
        _exit(EXIT_FAILURE);
    }
    at.sin_port = htons((uint16_t)port);
    rank = atoi(which);
    size = 2;
    wire = rank == 0 ? connected(&at) : accepted(&at);
    setsockopt(wire, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(wire, F_SETFL, O_NONBLOCK);
}

static void finish(void) {
    close(wire);
}

/* Skips what was moved. */
static void skip(struct iovec *parts, size_t moved) {
    int at;
    for (at = 0; at < 2; at++) {
        const size_t here = moved < parts[at].iov_len ? moved : parts[at].iov_len;
        parts[at].iov_base = (char *)parts[at].iov_base + here;
        parts[at].iov_len -= here;
        moved -= here;
    }
}

static void move(ssize_t (*call)(int, const struct iovec *, int), struct iovec *parts, const char *what) {
    while (parts[0].iov_len + parts[1].iov_len > 0) {
        const ssize_t moved = call(wire, parts, 2);
        if (moved > 0) {
            skip(parts, (size_t)moved);
        } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
            fail(what);
        }
    }
}

static void transmit(int tag, const void *buffer, size_t bytes) {
    uint64_t length = bytes;
    struct iovec parts[2] = {{&length, sizeof length}, {(void *)buffer, bytes}};
    (void)tag;
    move(writev, parts, "pingpong-sockets: write");
}

/* Reads length and content with one call, as the length is known to the caller. */
static void receive(int tag, void *buffer, size_t bytes) {
    uint64_t length = 0;
    struct iovec parts[2] = {{&length, sizeof length}, {buffer, bytes}};
    (void)tag;
    move(readv, parts, "pingpong-sockets: read");
    if (length != bytes) {
        errno = EMSGSIZE;
        fail("pingpong-sockets: read");
    }
}

static void start_transmit(int tag, const void *buffer, size_t bytes, request *out) {
    transmit(tag, buffer, bytes);
    *out = (request){NULL, 0};
}

static void start_receive(int tag, void *buffer, size_t bytes, request *out) {
    (void)tag;
    *out = (request){buffer, bytes};
}

static void wait_all(int count, request *requests) {
    int at;
    for (at = 0; at < count; at++) {
        if (requests[at].buffer != NULL) {
            receive(0, requests[at].buffer, requests[at].bytes);
        }
    }
}
