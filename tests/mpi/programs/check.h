/* What the programs share: a check that ends the job, and the time. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

/* Ends the job if a condition does not hold. */
#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "rank %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #condition);                      \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                       \
        }                                                                                                       \
    } while (0)

static unsigned char byte_of(int from, int number, size_t at) {
    return (unsigned char)(31u * (unsigned)from + 7u * (unsigned)number + at + (at >> 8));
}

static void fill(unsigned char *bytes, size_t length, int from, int number) {
    for (size_t at = 0; at < length; at++) bytes[at] = byte_of(from, number, at);
}

static int is_filled(const unsigned char *bytes, size_t length, int from, int number) {
    for (size_t at = 0; at < length; at++) {
        if (bytes[at] != byte_of(from, number, at)) return 0;
    }
    return 1;
}

static void begin(int *count, char ***words) {
    MPI_Init(count, words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

/* Returns whether this process has memory of an endpoint of Nemesia: no other transport has served it. */
static int has_nemesia(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) found |= strstr(line, "nemesia-own") != NULL;
    if (maps != NULL) fclose(maps);
    return found;
}

/* Says that all ranks have come here. */
static int end(const char *name) {
    CHECK(has_nemesia());
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("%s: %d ranks passed\n", name, size);
    MPI_Finalize();
    return 0;
}

#endif
