/* Several threads of each process send and receive at the same time (MPI_THREAD_MULTIPLE). */
#include "check.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200, MOST = 20011 };

static void *work(void *argument) {
    const int number = (int)(size_t)argument;
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char *out = malloc(MOST), *in = malloc(MOST);
    CHECK(out != NULL && in != NULL);
    for (int round = 0; round < ROUNDS; round++) {
        const int length = round % 10 == 0 ? MOST : 13 * round, tag = ROUNDS * number + round;
        MPI_Request requests[2];
        fill(out, (size_t)length, rank, tag);
        MPI_Irecv(in, length, MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, length, MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        CHECK(is_filled(in, (size_t)length, from, tag));
    }
    free(out);
    free(in);
    return NULL;
}

int main(int count, char **words) {
    pthread_t threads[THREADS];
    int provided;
    MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    for (size_t at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, work, (void *)at) == 0);
    for (size_t at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    return end("threads");
}
