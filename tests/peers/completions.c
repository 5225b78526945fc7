/* Many receives of 8 bytes, and the ways to learn that they are complete.
 *
 * One source for all: compiled with -DNEMESIA against nemesia.h, otherwise against MPI.
 *
 *   completions MESSAGES unexpected|posted queue|wait|test
 *
 * Rank 1 sends the messages. `unexpected`: all of them have come before rank 0 posts a receive. `posted`: all
 * receives are posted before. Rank 0 completes them by the completion queue (ours only), by one call that waits
 * for all, or by testing each request in turn. It prints `arrive SECONDS` and `receive SECONDS`: until the last
 * message has come (0 for `posted`), and from there until all receives are complete. Every content is checked.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CONTENT = 1, GO = 2, END = 3, LIMIT = 300, TAKEN = 256 };

static double now(void) {
    struct timespec it;
    clock_gettime(CLOCK_MONOTONIC, &it);
    return (double)it.tv_sec + (double)it.tv_nsec * 1e-9;
}

/* ---- The layer: the calls of each library. ---- */
#ifdef NEMESIA
#include <nemesia.h>

typedef uint64_t request;
static nemesia_endpoint *endpoint;
static int32_t rank;

static inline void check(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", nemesia_status_name(status), nemesia_last_error_message());
        _exit(EXIT_FAILURE);
    }
}

static void start(void) {
    check(nemesia_endpoint_open(NULL, &endpoint));
    check(nemesia_endpoint_rank(endpoint, &rank));
}

static void finish(void) {
    check(nemesia_endpoint_close(endpoint));
}

static void transmit(int to, int tag, uint64_t value) {
    check(nemesia_endpoint_send(endpoint, to, (uint64_t)tag, &value, sizeof value));
}

static uint64_t receive(int from, int tag) {
    uint64_t value = 0;
    check(nemesia_endpoint_recv(endpoint, from, (uint64_t)tag, 0, sizeof value, &value, NULL));
    return value;
}

static void start_receive(uint64_t *value, request *out) {
    check(nemesia_endpoint_irecv(endpoint, 1, CONTENT, 0, sizeof *value, value, out));
}

static void start_queued(uint64_t *value) {
    nemesia_operation it = {.struct_size = sizeof it, .kind = NEMESIA_OPERATION_RECEIVE};
    it.flags = NEMESIA_OPERATION_COMPLETION;
    it.user_context = (uint64_t)(uintptr_t)value;
    it.rank = 1;
    it.tag = CONTENT;
    it.buffer = value;
    it.len = sizeof *value;
    check(nemesia_endpoint_start(endpoint, &it, NULL));
}

static void take_queued(size_t count) {
    static nemesia_completion taken[TAKEN];
    while (count > 0) {
        size_t some = 0, at;
        check(nemesia_endpoint_wait_completions(endpoint, -1, TAKEN, taken, &some));
        for (at = 0; at < some; at++) check(taken[at].code);
        count -= some;
    }
}

static void wait_all(size_t count, request *requests) {
    check(nemesia_endpoint_wait_all(endpoint, count, requests, -1, NULL));
}

static int is_complete(request *it) {
    const int32_t status = nemesia_endpoint_test(endpoint, *it, NULL);
    check(status);
    return status != NEMESIA_PENDING;
}
#else
#include <mpi.h>

typedef MPI_Request request;
static int rank;

/* An error ends the program, as MPI's default does. */
static void start(void) {
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
}

static void finish(void) {
    MPI_Finalize();
}

static void transmit(int to, int tag, uint64_t value) {
    MPI_Send(&value, 1, MPI_UINT64_T, to, tag, MPI_COMM_WORLD);
}

static uint64_t receive(int from, int tag) {
    uint64_t value = 0;
    MPI_Recv(&value, 1, MPI_UINT64_T, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return value;
}

static void start_receive(uint64_t *value, request *out) {
    MPI_Irecv(value, 1, MPI_UINT64_T, 1, CONTENT, MPI_COMM_WORLD, out);
}

static void start_queued(uint64_t *value) {
    (void)value;
    fprintf(stderr, "MPI has no completion queue\n");
    _exit(EXIT_FAILURE);
}

static void take_queued(size_t count) {
    (void)count;
}

static void wait_all(size_t count, request *requests) {
    MPI_Waitall((int)count, requests, MPI_STATUSES_IGNORE);
}

static int is_complete(request *it) {
    int done;
    MPI_Test(it, &done, MPI_STATUS_IGNORE);
    return done;
}
#endif

/* Tests the requests in turn, again and again, as a program without a queue does. */
static void test_all(size_t count, request *requests) {
    while (count > 0) {
        size_t at, left = 0;
        for (at = 0; at < count; at++) {
            if (!is_complete(&requests[at])) requests[left++] = requests[at];
        }
        count = left;
    }
}

int main(int argc, char **argv) {
    const size_t count = argc == 4 ? strtoul(argv[1], NULL, 10) : 0;
    const int is_posted = argc == 4 && strcmp(argv[2], "posted") == 0;
    const char *way = argc == 4 ? argv[3] : "";
    uint64_t *values = calloc(count + 1, sizeof *values);
    request *requests = calloc(count + 1, sizeof *requests);
    double arrive = 0, begun;
    size_t at;
    if (count == 0 || values == NULL || requests == NULL) {
        fprintf(stderr, "usage: completions MESSAGES unexpected|posted queue|wait|test\n");
        return EXIT_FAILURE;
    }
    alarm(LIMIT);
    start();
    if (rank == 1) {
        receive(0, GO);
        for (at = 0; at < count; at++) transmit(0, CONTENT, at + 1);
        transmit(0, END, 0);
        receive(0, GO);
        finish();
        return EXIT_SUCCESS;
    }
    if (!is_posted) {
        begun = now();
        transmit(1, GO, 0);
        receive(1, END);
        arrive = now() - begun;
    }
    begun = now();
    for (at = 0; at < count; at++) {
        if (strcmp(way, "queue") == 0) {
            start_queued(&values[at]);
        } else {
            start_receive(&values[at], &requests[at]);
        }
    }
    if (is_posted) transmit(1, GO, 0);
    if (strcmp(way, "queue") == 0) {
        take_queued(count);
    } else if (strcmp(way, "wait") == 0) {
        wait_all(count, requests);
    } else {
        test_all(count, requests);
    }
    printf("arrive %.6f\nreceive %.6f\n", arrive, now() - begun);
    for (at = 0; at < count; at++) {
        if (values[at] != at + 1) {
            fprintf(stderr, "receive %zu got %llu\n", at, (unsigned long long)values[at]);
            return EXIT_FAILURE;
        }
    }
    if (is_posted) receive(1, END);
    transmit(1, GO, 0);
    finish();
    return EXIT_SUCCESS;
}
