/* Probes of all kinds, any source and any tag, and withdrawn receives. */
#include "check.h"

enum { ROUNDS = 50, MOST = 100003 };

static int length_of(int from, int round) {
    static const int lengths[] = {0, 1, 100, 5000, 9001, MOST};
    return lengths[(from + round) % 6];
}

static void send_all(unsigned char *bytes) {
    for (int round = 0; round < ROUNDS; round++) {
        const int length = length_of(rank, round);
        fill(bytes, (size_t)length, rank, round);
        MPI_Send(bytes, length, MPI_BYTE, 0, round, MPI_COMM_WORLD);
    }
}

/* Finds each message by one of three kinds of probe, and receives it. */
static void take_all(unsigned char *bytes) {
    int *next = calloc((size_t)size, sizeof *next);
    CHECK(next != NULL);
    for (int taken = 0; taken < ROUNDS * (size - 1); taken++) {
        MPI_Status status;
        MPI_Message message;
        int length, found = 0;
        if (taken % 3 == 0) MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
        if (taken % 3 == 1) MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        while (taken % 3 == 2 && !found) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, &status);
        MPI_Get_count(&status, MPI_BYTE, &length);
        const int from = status.MPI_SOURCE, round = status.MPI_TAG;
        CHECK(from > 0 && from < size && round == next[from]++ && length == length_of(from, round));
        if (taken % 3 == 0) MPI_Mrecv(bytes, length, MPI_BYTE, &message, &status);
        else MPI_Recv(bytes, length, MPI_BYTE, from, round, MPI_COMM_WORLD, &status);
        CHECK(is_filled(bytes, (size_t)length, from, round));
    }
    free(next);
}

static void withdrawn(void) {
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int round = 0; round < 100; round++) {
        int value = -1, other = round, cancelled;
        MPI_Request request;
        MPI_Status status;
        MPI_Irecv(&value, 1, MPI_INT, from, 999, MPI_COMM_WORLD, &request);
        MPI_Cancel(&request);
        MPI_Wait(&request, &status);
        MPI_Test_cancelled(&status, &cancelled);
        CHECK(cancelled && value == -1);
        MPI_Sendrecv(&other, 1, MPI_INT, to, 1000, &value, 1, MPI_INT, from, 1000, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(value == round);
    }
}

int main(int count, char **words) {
    unsigned char *bytes = malloc(MOST);
    begin(&count, &words);
    CHECK(bytes != NULL);
    if (rank == 0) take_all(bytes);
    else send_all(bytes);
    MPI_Barrier(MPI_COMM_WORLD); /* rank 0 takes any message */
    withdrawn();
    free(bytes);
    return end("probes");
}
