/* Many processes on few cores exchange messages of 8 bytes, or wait for one.
 *
 * One source for all: compiled with -DNEMESIA against nemesia.h, with -DBARE against nothing (`bare.h`), otherwise
 * against MPI.
 *
 *   oversubscription ring SECONDS         a token goes round: prints `ring NANOSECONDS_A_HOP`
 *   oversubscription all-to-all SECONDS   every process to every process: prints `all-to-all NANOSECONDS_A_ROUND`
 *   oversubscription ring-test SECONDS, oversubscription all-to-all-test SECONDS
 *                                         the same, but each process only tests its requests and never waits
 *   oversubscription idle SECONDS         all but rank 0 wait for a message: prints `idle PROCESSORS`, the processors
 *   used by waiting
 *
 * All but the last are measured in batches, each twice as long as the last, until one has taken so many seconds. Rank 0
 * prints that one. All processes count every token and check every message.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "ticks.h"

enum {
    MOST = 256,    /* processes */
    LIMIT = 300,   /* a process ends after so many seconds, whatever its launcher does */
    TOKEN = 1,     /* tags */
    CONTENT = 2,
    COUNT = 3,
    COST = 4
};

/* ---- The layer: the calls of each library. ---- */
#ifdef NEMESIA
#include <nemesia.h>

typedef uint64_t request;
static nemesia_endpoint *endpoint;
static int32_t rank, size;

static inline void check(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", nemesia_status_name(status), nemesia_last_error_message());
        _exit(EXIT_FAILURE);
    }
}

static void start(void) {
    check(nemesia_endpoint_open(NULL, &endpoint));
    check(nemesia_endpoint_rank(endpoint, &rank));
    check(nemesia_endpoint_size(endpoint, &size));
}

static inline void finish(void) {
    check(nemesia_endpoint_close(endpoint));
}

static inline void transmit(int to, int tag, uint64_t value) {
    check(nemesia_endpoint_send(endpoint, to, (uint64_t)tag, &value, sizeof value));
}

static inline uint64_t receive(int from, int tag) {
    uint64_t value = 0;
    check(nemesia_endpoint_recv(endpoint, from, (uint64_t)tag, 0, sizeof value, &value, NULL));
    return value;
}

static inline void start_transmit(int to, int tag, const uint64_t *value, request *out) {
    check(nemesia_endpoint_isend(endpoint, to, (uint64_t)tag, value, sizeof *value, out));
}

static inline void start_receive(int from, int tag, uint64_t *value, request *out) {
    check(nemesia_endpoint_irecv(endpoint, from, (uint64_t)tag, 0, sizeof *value, value, out));
}

static inline void wait_all(int count, request *requests) {
    check(nemesia_endpoint_wait_all(endpoint, (size_t)count, requests, -1, NULL));
}

static inline int is_complete(request *it) {
    const int32_t status = nemesia_endpoint_test(endpoint, *it, NULL);
    check(status);
    return status != NEMESIA_PENDING;
}
#elif defined(BARE)
#include "bare.h"
#else
#include <mpi.h>

typedef MPI_Request request;
static int rank, size;

/* An error ends the program, as MPI's default does. */
static void start(void) {
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

static inline void finish(void) {
    MPI_Finalize();
}

static inline void transmit(int to, int tag, uint64_t value) {
    MPI_Send(&value, 1, MPI_UINT64_T, to, tag, MPI_COMM_WORLD);
}

static inline uint64_t receive(int from, int tag) {
    uint64_t value = 0;
    MPI_Recv(&value, 1, MPI_UINT64_T, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return value;
}

static inline void start_transmit(int to, int tag, const uint64_t *value, request *out) {
    MPI_Isend(value, 1, MPI_UINT64_T, to, tag, MPI_COMM_WORLD, out);
}

static inline void start_receive(int from, int tag, uint64_t *value, request *out) {
    MPI_Irecv(value, 1, MPI_UINT64_T, from, tag, MPI_COMM_WORLD, out);
}

static inline void wait_all(int count, request *requests) {
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
}

static inline int is_complete(request *it) {
    int done;
    MPI_Test(it, &done, MPI_STATUS_IGNORE);
    return done;
}
#endif

/* ---- The measurements. ---- */
static void die(const char *problem) {
    fprintf(stderr, "oversubscription: %s\n", problem);
    _exit(EXIT_FAILURE);
}

static int tests_only;  /* whether the measured calls never wait */

/* Completes requests as a runtime does that only polls: it tests all that are left in turn. */
static inline void complete_all(int count, request *requests) {
    int at;
    if (!tests_only) {
        wait_all(count, requests);
        return;
    }
    while (count > 0) {
        for (at = 0; at < count;) {
            if (is_complete(&requests[at])) {
                requests[at] = requests[--count];
            } else {
                at++;
            }
        }
    }
}

static inline void pass_on(int to, int tag, uint64_t value) {
    request one;
    if (!tests_only) {
        transmit(to, tag, value);
        return;
    }
    start_transmit(to, tag, &value, &one);
    complete_all(1, &one);
}

static inline uint64_t take_over(int from, int tag) {
    uint64_t value = 0;
    request one;
    if (!tests_only) {
        return receive(from, tag);
    }
    start_receive(from, tag, &value, &one);
    complete_all(1, &one);
    return value;
}

/* Passes a token of 8 bytes round so many times; every process adds one. */
static void ring(uint64_t rounds) {
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    uint64_t round, token;
    for (round = 0; round < rounds; round++) {
        if (rank == 0) {
            pass_on(next, TOKEN, round * (uint64_t)size);
        }
        token = take_over(before, TOKEN);
        if (token != round * (uint64_t)size + (uint64_t)(rank == 0 ? size - 1 : rank - 1)) {
            die("the token has lost count");
        }
        if (rank != 0) {
            pass_on(next, TOKEN, token + 1);
        }
    }
}

static void all_to_all(uint64_t rounds) {
    static uint64_t out[MOST], in[MOST];
    static request requests[2 * MOST];
    uint64_t round;
    for (round = 0; round < rounds; round++) {
        int count = 0, step;
        for (step = 1; step < size; step++) {
            const int from = (rank + size - step) % size;
            start_receive(from, CONTENT, &in[from], &requests[count++]);
        }
        for (step = 1; step < size; step++) {
            const int to = (rank + step) % size;
            out[to] = round << 16 | (uint64_t)rank << 8 | (uint64_t)to;
            start_transmit(to, CONTENT, &out[to], &requests[count++]);
        }
        complete_all(count, requests);
        for (step = 1; step < size; step++) {
            const int from = (rank + step) % size;
            if (in[from] != (round << 16 | (uint64_t)from << 8 | (uint64_t)rank)) {
                die("a message arrived damaged");
            }
        }
    }
}

/* Runs batches until one takes long enough; returns the nanoseconds of one round of it, at rank 0. */
static double measure(void (*batch)(uint64_t), double seconds) {
    uint64_t rounds = 4;
    double begin, passed = 0;
    for (;;) {
        int to;
        if (rank != 0) {
            rounds = receive(0, COUNT);
        }
        if (rank == 0) {
            for (to = 1; to < size; to++) {
                transmit(to, COUNT, rounds);
            }
        }
        if (rounds == 0) {
            return 0;
        }
        begin = clock_ns();
        batch(rounds);
        passed = clock_ns() - begin;
        if (rank == 0 && passed >= 1e9 * seconds) {
            for (to = 1; to < size; to++) {
                transmit(to, COUNT, 0);
            }
            return passed / (double)rounds;
        }
        rounds *= 2;
    }
}

static double processor_ns(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return 1e9 * (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e3 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* Returns the processors that all others used together while they waited for rank 0, which slept. */
static double idle(double seconds) {
    double taken = 0;
    int peer;
    if (rank != 0) {
        const double before = processor_ns();
        receive(0, TOKEN);
        transmit(0, COST, (uint64_t)(processor_ns() - before));
        return 0;
    }
    usleep((useconds_t)(1e6 * seconds));
    for (peer = 1; peer < size; peer++) {
        transmit(peer, TOKEN, 0);
    }
    for (peer = 1; peer < size; peer++) {
        taken += (double)receive(peer, COST);
    }
    return taken / (1e9 * seconds);
}

int main(int count, char **arguments) {
    const char *test = count == 3 ? arguments[1] : "";
    const double seconds = count == 3 ? atof(arguments[2]) : 0;
    double found;
    alarm(LIMIT);
    start();
    if (size < 2 || size > MOST) {
        die("start 2 to 256 processes");
    }
    tests_only = strstr(test, "-test") != NULL;
    if (strcmp(test, "ring") == 0 || strcmp(test, "ring-test") == 0) {
        found = measure(ring, seconds) / size;
    } else if (strcmp(test, "all-to-all") == 0 || strcmp(test, "all-to-all-test") == 0) {
        found = measure(all_to_all, seconds);
    } else if (strcmp(test, "idle") == 0) {
        found = idle(seconds);
    } else {
        die("give a test and how long: oversubscription ring|all-to-all|ring-test|all-to-all-test|idle SECONDS");
        return EXIT_FAILURE;
    }
    if (rank == 0) {
        printf("%s %.6g\n", test, found);
        fflush(stdout);
    }
    finish();
    return EXIT_SUCCESS;
}
