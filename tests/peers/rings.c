/* The ways of a process to learn what has come over TCP, without a library: a ping-pong of two processes, each on a
 * core of its own, that never sleep. Both send with `send`.
 *
 *   rings WAY BYTES CORE CORE      prints nanoseconds one way, the best of several rounds
 *
 * recv         `recv` until there is something
 * epoll        `epoll_wait` without a wait until there is something, then `recv`
 * ring         io_uring, one receive after the other; the kernel interrupts the process for each completion
 * ring-coop    the same with IORING_SETUP_COOP_TASKRUN: the process enters the kernel when a flag says so
 * ring-defer   the same with IORING_SETUP_DEFER_TASKRUN: the process enters the kernel in each poll
 * multi-...    the same with one receive for all messages, into buffers of a ring
 */
#define _GNU_SOURCE
#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BUFFERS = 64, BUFFER_BYTES = 65536, MOST_BYTES = 1 << 20, ROUNDS = 6, TIMES = 10000 };

static int wire, events, is_multi, is_coop, is_defer, is_ring;
static size_t bytes;
static char *content, *pool;
static struct io_uring ring;
static struct io_uring_buf_ring *buffers;

static void fail(const char *what, int error) {
    fprintf(stderr, "rings: %s: %s\n", what, strerror(error));
    exit(EXIT_FAILURE);
}

static void check(int result, const char *what) {
    if (result < 0) {
        fail(what, result == -1 ? errno : -result);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static void post(size_t at) {
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    if (is_multi) {
        io_uring_prep_recv_multishot(entry, wire, NULL, 0, 0);
        entry->flags |= IOSQE_BUFFER_SELECT;
    } else {
        io_uring_prep_recv(entry, wire, content + at, bytes - at, 0);
    }
    check(io_uring_submit(&ring), "submit");
}

static void return_buffer(int at) {
    io_uring_buf_ring_add(buffers, pool + (size_t)at * BUFFER_BYTES, BUFFER_BYTES, (unsigned short)at,
                          io_uring_buf_ring_mask(BUFFERS), 0);
    io_uring_buf_ring_advance(buffers, 1);
}

static void open_ring(void) {
    struct io_uring_params parameters = {.flags = IORING_SETUP_SINGLE_ISSUER};
    struct io_uring_buf_reg registration = {.ring_entries = BUFFERS};
    int at;
    parameters.flags |= is_defer ? IORING_SETUP_DEFER_TASKRUN : 0;
    parameters.flags |= is_coop ? IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG : 0;
    check(io_uring_queue_init_params(256, &ring, &parameters), "io_uring");
    if (is_multi) {
        pool = aligned_alloc(4096, (size_t)BUFFERS * BUFFER_BYTES);
        buffers = aligned_alloc(4096, BUFFERS * sizeof(struct io_uring_buf));
        registration.ring_addr = (unsigned long)buffers;
        check(io_uring_register_buf_ring(&ring, &registration, 0), "ring of buffers");
        io_uring_buf_ring_init(buffers);
        for (at = 0; at < BUFFERS; at++) {
            return_buffer(at);
        }
    }
    post(0);
}

static void transmit(void) {
    size_t at = 0;
    while (at < bytes) {
        const ssize_t sent = send(wire, content + at, bytes - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        at += sent > 0 ? (size_t)sent : 0;
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            fail("send", errno);
        }
    }
}

/* Returns the bytes of the next completion, which are at `at`. */
static size_t complete(size_t at) {
    struct io_uring_cqe *entry;
    size_t count;
    while (io_uring_peek_cqe(&ring, &entry) != 0) {
        if (is_defer || (is_coop && (*ring.sq.kflags & IORING_SQ_TASKRUN) != 0)) {
            io_uring_get_events(&ring);
        }
    }
    if (entry->res <= 0) {
        fail("receive", entry->res == 0 ? EPIPE : -entry->res);
    }
    count = (size_t)entry->res;
    if (is_multi) {
        const int from = (int)(entry->flags >> IORING_CQE_BUFFER_SHIFT);
        memcpy(content + at, pool + (size_t)from * BUFFER_BYTES, count);
        return_buffer(from);
    }
    if (!is_multi || (entry->flags & IORING_CQE_F_MORE) == 0) {
        io_uring_cqe_seen(&ring, entry);
        post(at + count < bytes ? at + count : 0);
    } else {
        io_uring_cqe_seen(&ring, entry);
    }
    return count;
}

static void receive(void) {
    size_t at = 0;
    while (at < bytes) {
        struct epoll_event event;
        ssize_t count;
        if (is_ring) {
            at += complete(at);
            continue;
        }
        if (events >= 0 && epoll_wait(events, &event, 1, 0) <= 0) {
            continue;
        }
        count = recv(wire, content + at, bytes - at, MSG_DONTWAIT);
        at += count > 0 ? (size_t)count : 0;
        if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
            fail("recv", count == 0 ? EPIPE : errno);
        }
    }
}

static void prepare(const char *way) {
    struct epoll_event event = {.events = EPOLLIN};
    is_multi = strncmp(way, "multi-", 6) == 0;
    is_ring = is_multi || strncmp(way, "ring", 4) == 0;
    is_coop = strstr(way, "coop") != NULL;
    is_defer = strstr(way, "defer") != NULL;
    events = -1;
    content = aligned_alloc(4096, MOST_BYTES);
    memset(content, 1, MOST_BYTES);
    if (is_ring) {
        open_ring();
    } else if (strcmp(way, "epoll") == 0) {
        events = epoll_create1(0);
        check(epoll_ctl(events, EPOLL_CTL_ADD, wire, &event), "epoll");
    } else if (strcmp(way, "recv") != 0) {
        fail(way, EINVAL);
    }
}

static void run(const char *way, int is_second, int core) {
    double best = 0;
    cpu_set_t cores;
    int round, time, half;
    const int on = 1;
    CPU_ZERO(&cores);
    CPU_SET((size_t)core, &cores);
    sched_setaffinity(0, sizeof cores, &cores);
    setsockopt(wire, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    prepare(way);
    for (round = 0; round < ROUNDS; round++) {
        const double begun = now();
        double one_way;
        for (time = 0; time < TIMES; time++) {
            for (half = 0; half < 2; half++) {
                half == is_second ? transmit() : receive();
            }
        }
        one_way = (now() - begun) / TIMES / 2;
        best = best == 0 || one_way < best ? one_way : best;
    }
    if (!is_second) {
        printf("%.0f\n", best);
    }
}

int main(int count, char **words) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    pid_t child;
    int status = 0;
    bytes = count == 5 ? (size_t)atol(words[2]) : 0;
    if (bytes == 0 || bytes > MOST_BYTES) {
        fprintf(stderr, "usage: rings WAY BYTES CORE CORE\n");
        return EXIT_FAILURE;
    }
    check(bind(listener, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(listener, 1), "listen");
    check(getsockname(listener, (struct sockaddr *)&at, &len), "address");
    child = fork();
    check(child, "fork");
    if (child == 0) {
        wire = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(wire, (struct sockaddr *)&at, sizeof at), "connect");
        run(words[1], 1, atoi(words[4]));
        return EXIT_SUCCESS;
    }
    wire = accept(listener, NULL, NULL);
    check(wire, "accept");
    run(words[1], 0, atoi(words[3]));
    check(waitpid(child, &status, 0), "end");
    return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
