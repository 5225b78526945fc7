/* Measures an MPI: `measure latency,bandwidth,rate,barrier,... SIZE,SIZE,... NANOSECONDS`.
 *
 * Each line of the output has a test, a size in bytes and a value: nanoseconds one way for latency; MB/s (10^6 bytes)
 * and messages a second of windows of 64; nanoseconds of one call for collective operations. A value takes about as
 * many nanoseconds as the third word says. Others use the machine, too: values of messages are the 5th percentile of
 * batches, and those of collective operations, which may have more processes than processors, the median. */
#include "check.h"

#include <time.h>

enum { WINDOW = 64, BATCHES = 40, LARGEST = 1 << 22 };

static unsigned char *out, *in;
static double budget;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static int order(const void *one, const void *two) {
    const double left = *(const double *)one, right = *(const double *)two;
    return (left > right) - (left < right);
}

static void ping_pong(int size) {
    if (rank == 0) {
        MPI_Send(out, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(in, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(in, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

/* Sends a window of messages to the other process, which answers it. */
static void window(int size) {
    MPI_Request all[WINDOW];
    char answer = 0;
    for (int at = 0; at < WINDOW; at++) {
        if (rank == 0) MPI_Isend(out, size, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &all[at]);
        else if (rank == 1) MPI_Irecv(in, size, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &all[at]);
    }
    if (rank > 1) return;
    MPI_Waitall(WINDOW, all, MPI_STATUSES_IGNORE);
    if (rank == 1) MPI_Send(&answer, 1, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
    else MPI_Recv(&answer, 1, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void barrier(int size) {
    (void)size;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void bcast(int size) { MPI_Bcast(out, size, MPI_BYTE, 0, MPI_COMM_WORLD); }
static void allreduce(int size) { MPI_Allreduce(out, in, (size + 7) / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); }
static void allgather(int size) { MPI_Allgather(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD); }
static void alltoall(int total) { MPI_Alltoall(out, total, MPI_BYTE, in, total, MPI_BYTE, MPI_COMM_WORLD); }

/* Returns the nanoseconds of one step: a percentile of batches, of which each has as many as the time allows. */
static double measured(void (*step)(int), int size, int percent) {
    double batches[BATCHES], begun = now(), each;
    int count = 1;
    for (int at = 0; at < 20; at++) step(size);
    begun = now();
    for (int at = 0; at < 5; at++) step(size);
    each = (now() - begun) / 5;
    count = (int)(budget / BATCHES / (each + 1));
    count = count < 1 ? 1 : count > 100000 ? 100000 : count;
    MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int batch = 0; batch < BATCHES; batch++) {
        begun = now();
        for (int at = 0; at < count; at++) step(size);
        batches[batch] = (now() - begun) / count;
    }
    qsort(batches, BATCHES, sizeof *batches, order);
    return batches[BATCHES * percent / 100];
}

static void report(const char *test, int bytes, double value) {
    if (rank == 0) printf("%s %d %.6g\n", test, bytes, value);
}

static int is_wanted(const char *list, const char *test) {
    const char *found = strstr(list, test);
    return found != NULL && (found == list || found[-1] == ',') && strchr(",", found[strlen(test)]) != NULL;
}

static void messages(const char *tests, int bytes) {
    if (is_wanted(tests, "latency")) report("latency", bytes, measured(ping_pong, bytes, 5) / 2);
    if (is_wanted(tests, "bandwidth") || is_wanted(tests, "rate")) {
        const double each = measured(window, bytes, 5) / WINDOW;
        if (is_wanted(tests, "rate")) report("rate", bytes, 1e9 / each);
        if (is_wanted(tests, "bandwidth") && bytes > 0) report("bandwidth", bytes, 1e3 * bytes / each);
    }
}

static void collectives(const char *tests, int bytes) {
    if (is_wanted(tests, "bcast")) report("bcast", bytes, measured(bcast, bytes, 50));
    if (is_wanted(tests, "allreduce")) report("allreduce", bytes, measured(allreduce, bytes, 50));
    if (is_wanted(tests, "allgather")) report("allgather", bytes, measured(allgather, bytes, 50));
    if (is_wanted(tests, "alltoall")) report("alltoall", bytes, measured(alltoall, bytes, 50));
}

/* Messages that no receive waits for: all are sent before the first is received. Reports nanoseconds of all. */
static void unexpected(int count) {
    const double begun = now();
    unsigned long value = 0;
    char ready = 0;
    if (rank == 0) {
        for (int at = 0; at < count; at++) {
            value = (unsigned long)at;
            MPI_Send(&value, 8, MPI_BYTE, 1, 4, MPI_COMM_WORLD);
        }
        MPI_Send(&ready, 1, MPI_BYTE, 1, 5, MPI_COMM_WORLD);
        MPI_Recv(&ready, 1, MPI_BYTE, 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(&ready, 1, MPI_BYTE, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int at = 0; at < count; at++) {
            MPI_Recv(&value, 8, MPI_BYTE, 0, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(value == (unsigned long)at);
        }
        MPI_Send(&ready, 1, MPI_BYTE, 0, 6, MPI_COMM_WORLD);
    }
    report("unexpected", count, now() - begun);
}

int main(int count, char **words) {
    begin(&count, &words);
    CHECK(count == 4 && size >= 2);
    budget = atof(words[3]);
    out = calloc((size_t)size, LARGEST), in = calloc((size_t)size, LARGEST);
    CHECK(out != NULL && in != NULL);
    if (is_wanted(words[1], "barrier")) report("barrier", 0, measured(barrier, 0, 50));
    for (char *next = words[2]; *next != 0;) {
        const long bytes = strtol(next, &next, 10);
        next += *next == ',';
        CHECK(bytes >= 0 && bytes <= LARGEST);
        messages(words[1], (int)bytes);
        collectives(words[1], (int)bytes);
        if (is_wanted(words[1], "unexpected")) unexpected((int)bytes);
    }
    MPI_Finalize();
    free(out), free(in);
    return 0;
}
