/* The start of a job: each rank opens, exchanges one message with its neighbours, and ends.
 *
 * One source for all: compiled with -DNEMESIA against nemesia.h, otherwise against MPI.
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
