/* Messages of odd sizes around a ring, between pairs, unexpected, to the own rank, and in lists of blocks. */
#include "check.h"

enum { MOST = 3000017, BURST = 2000 };
static const int lengths[] = {0,    1,    7,    63,   64,    65,    231,    233,     1000,
                              4095, 4097, 8191, 8193, 16385, 65537, 262147, 1048583, MOST};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void ring(unsigned char *out, unsigned char *in) {
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int number = 0; number < LENGTHS; number++) {
        const int length = lengths[number];
        MPI_Status status;
        int count;
        fill(out, (size_t)length, rank, number);
        memset(in, 0, (size_t)length);
        MPI_Sendrecv(out, length, MPI_BYTE, to, number, in, length, MPI_BYTE, from, number, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK(count == length && status.MPI_SOURCE == from && status.MPI_TAG == number);
        CHECK(is_filled(in, (size_t)length, from, number));
    }
}

static void ping_pong(unsigned char *bytes) {
    const int peer = rank ^ 1;
    if (peer >= size) return;
    for (int number = 0; number < LENGTHS; number++) {
        for (int round = 0; round < 3; round++) {
            const int length = lengths[number];
            if (rank % 2 == 0) {
                fill(bytes, (size_t)length, rank, round);
                MPI_Ssend(bytes, length, MPI_BYTE, peer, round, MPI_COMM_WORLD);
                memset(bytes, 0, (size_t)length);
                MPI_Recv(bytes, length, MPI_BYTE, peer, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                CHECK(is_filled(bytes, (size_t)length, rank, round));
            } else {
                MPI_Recv(bytes, length, MPI_BYTE, peer, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                CHECK(is_filled(bytes, (size_t)length, peer, round));
                MPI_Send(bytes, length, MPI_BYTE, peer, round, MPI_COMM_WORLD);
            }
        }
    }
}

/* All messages come before their receives, which are posted in the opposite order. */
static void unexpected(void) {
    static int values[BURST];
    static MPI_Request requests[BURST];
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int at = 0; at < BURST; at++) {
        values[at] = 1000 * rank + at;
        MPI_Isend(&values[at], 1, MPI_INT, to, at, MPI_COMM_WORLD, &requests[at]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int at = BURST - 1; at >= 0; at--) {
        int value = -1;
        MPI_Recv(&value, 1, MPI_INT, from, at, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(value == 1000 * from + at);
    }
    MPI_Waitall(BURST, requests, MPI_STATUSES_IGNORE);
}

static void own_rank(unsigned char *out, unsigned char *in) {
    for (int number = 0; number < LENGTHS; number++) {
        const int length = lengths[number];
        MPI_Request request;
        fill(out, (size_t)length, rank, number);
        MPI_Irecv(in, length, MPI_BYTE, rank, 5, MPI_COMM_WORLD, &request);
        MPI_Send(out, length, MPI_BYTE, rank, 5, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        CHECK(is_filled(in, (size_t)length, rank, number));
    }
}

static void blocks(unsigned char *out, unsigned char *in) {
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Datatype vector;
    MPI_Type_vector(1000, 3, 7, MPI_BYTE, &vector);
    MPI_Type_commit(&vector);
    fill(out, 7000, rank, 9);
    memset(in, 0, 7000);
    MPI_Sendrecv(out, 1, vector, to, 1, in, 1, vector, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (size_t at = 0; at < 6996; at++) CHECK(in[at] == (at % 7 < 3 ? byte_of(from, 9, at) : 0));
    MPI_Type_free(&vector);
}

/* A message that is longer than its buffer is an error of its receive only. */
static void truncated(unsigned char *out, unsigned char *in) {
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Request request;
    MPI_Status status;
    int code, class;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Irecv(in, 10, MPI_BYTE, from, 3, MPI_COMM_WORLD, &request);
    MPI_Send(out, 20, MPI_BYTE, to, 3, MPI_COMM_WORLD);
    code = MPI_Wait(&request, &status);
    CHECK(code != MPI_SUCCESS);
    MPI_Error_class(code, &class);
    CHECK(class == MPI_ERR_TRUNCATE);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* The tags up to the largest. MPICH puts the sender into the tag if receives cannot name it, and its tags then end at
 * 262,143. Those of Intel MPI end at 524,287 over every provider. */
static void tags(void) {
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    int *most, found = 0, length;
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Get_library_version(version, &length);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    CHECK(found && *most >= (strstr(version, "Intel") != NULL ? (1 << 19) - 1 : 1 << 28));
    for (int bit = 0; bit < 31; bit++) {
        const int tag = bit == 30 ? *most : 1 << bit;
        int value = rank, other = -1;
        if (tag > *most) continue;
        MPI_Sendrecv(&value, 1, MPI_INT, to, tag, &other, 1, MPI_INT, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(other == from);
    }
}

int main(int count, char **words) {
    unsigned char *out = malloc(MOST), *in = malloc(MOST);
    begin(&count, &words);
    CHECK(out != NULL && in != NULL);
    ring(out, in);
    ping_pong(out);
    unexpected();
    own_rank(out, in);
    blocks(out, in);
    truncated(out, in);
    tags();
    free(out);
    free(in);
    return end("messages");
}
