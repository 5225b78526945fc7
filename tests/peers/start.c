/* The start of a job: each rank opens, exchanges one message with its neighbours, and ends.
 *
 * One source for all: compiled with -DNEMESIA against nemesia.h, with -DTHREADS without a library, otherwise against
 * MPI. Without a library, each two ranks are connected over TCP when the job starts, as paper 5 (section 3.2) describes
 * the set-up with threads: one thread accepts the higher ranks, while the main thread connects with the lower ones.
 * Rank r listens at port START_PORT + r of the loopback interface.
 *
 *   start neighbours|all
 *
 * `neighbours`: rank r sends one integer to rank r + 1. `all`: every rank sends one to every other. The content is
 * checked. The whole job is timed from outside, from the start of its launcher to its end.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The layer: the calls of each library. ---- */
#ifdef NEMESIA
#include <nemesia.h>

static nemesia_endpoint *endpoint;
static int32_t rank, size;

static void check(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", nemesia_status_name(status), nemesia_last_error_message());
        exit(EXIT_FAILURE);
    }
}

static void begin(void) {
    check(nemesia_endpoint_open(NULL, &endpoint));
    check(nemesia_endpoint_rank(endpoint, &rank));
    check(nemesia_endpoint_size(endpoint, &size));
}

static void end(void) {
    check(nemesia_endpoint_close(endpoint));
}

static int exchange(int to, int from, int value) {
    uint64_t request;
    int got = -1;
    check(nemesia_endpoint_irecv(endpoint, from, 1, 0, sizeof got, &got, &request));
    check(nemesia_endpoint_send(endpoint, to, 1, &value, sizeof value));
    check(nemesia_endpoint_wait(endpoint, request, -1, NULL));
    return got;
}
#elif defined THREADS
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1024, PATIENCE = 10000 /* requests of a connection, one a millisecond */ };

static int rank, size, listener, wires[MOST];

static void fail(const char *what) {
    perror(what);
    exit(EXIT_FAILURE);
}

static int number(const char *name) {
    const char *text = getenv(name);
    if (text == NULL) {
        fprintf(stderr, "start-threads: %s is not set\n", name);
        exit(EXIT_FAILURE);
    }
    return atoi(text);
}

static struct sockaddr_in place(int of) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    at.sin_port = htons((uint16_t)(number("START_PORT") + of));
    return at;
}

static void move(ssize_t count, const char *what) {
    if (count != sizeof(int)) {
        fail(what);
    }
}

static void *accept_higher(void *unused) {
    for (int at = rank + 1; at < size; at++) {
        int who = -1, wire = accept(listener, NULL, NULL);
        move(recv(wire, &who, sizeof who, MSG_WAITALL), "start-threads: accept");
        if (who <= rank || who >= size) {
            fail("start-threads: rank");
        }
        wires[who] = wire;
    }
    return unused;
}

static void connect_lower(int to) {
    const struct timespec pause = {0, 1000000};
    const struct sockaddr_in at = place(to);
    for (int tries = 0; tries < PATIENCE; tries++) {
        const int wire = socket(AF_INET, SOCK_STREAM, 0), on = 1;
        setsockopt(wire, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (connect(wire, (const struct sockaddr *)&at, sizeof at) == 0) {
            move(send(wire, &rank, sizeof rank, MSG_NOSIGNAL), "start-threads: send");
            wires[to] = wire;
            return;
        }
        close(wire);
        nanosleep(&pause, NULL);
    }
    fail("start-threads: connect");
}

static void begin(void) {
    pthread_t server;
    struct sockaddr_in at;
    const int on = 1;
    rank = number("PMI_RANK");
    size = number("PMI_SIZE");
    at = place(rank);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (size > MOST || bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, size) != 0) {
        fail("start-threads: listen");
    }
    if (pthread_create(&server, NULL, accept_higher, NULL) != 0) {
        fail("start-threads: thread");
    }
    for (int to = rank - 1; to >= 0; to--) {
        connect_lower(to);
    }
    pthread_join(server, NULL);
}

static void end(void) {
}

static int exchange(int to, int from, int value) {
    int got = -1;
    move(send(wires[to], &value, sizeof value, MSG_NOSIGNAL), "start-threads: send");
    move(recv(wires[from], &got, sizeof got, MSG_WAITALL), "start-threads: receive");
    return got;
}
#else
#include <mpi.h>

static int rank, size;

static void begin(void) {
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

static void end(void) {
    MPI_Finalize();
}

static int exchange(int to, int from, int value) {
    int got = -1;
    MPI_Sendrecv(&value, 1, MPI_INT, to, 1, &got, 1, MPI_INT, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return got;
}
#endif

int main(int count, char **words) {
    int all = count == 2 && !strcmp(words[1], "all");
    begin();
    for (int step = 1; step < (all ? size : 2); step++) {
        int from = (rank + size - step) % size;
        if (exchange((rank + step) % size, from, 1000 * step + rank) != 1000 * step + from) {
            fprintf(stderr, "rank %d: a wrong number from rank %d\n", (int)rank, from);
            return EXIT_FAILURE;
        }
    }
    end();
    return EXIT_SUCCESS;
}
