/* MPI_Isend is local: rank 0 starts all of its sends before any other rank makes an MPI call. These wait for a file to
 * vanish, then receive every message, in order. Rank 0 is not connected with all of them when it begins. */
#include <limits.h>
#include <unistd.h>

#include "check.h"

enum { LONGEST = 4000, OFFSETS = 251, LIMIT = 250 /* seconds */ };
static const int lengths[] = {0, 8, 233, LONGEST};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static unsigned char bytes[LONGEST + OFFSETS], in[LONGEST];
static char path[PATH_MAX];

/* Rank 0 makes the file and tells its name. */
static void make_file(void) {
    if (rank == 0) {
        const char *place = getenv("TMPDIR");
        snprintf(path, sizeof path, "%s/nemesia-local-XXXXXX", place == NULL ? "/tmp" : place);
        const int file = mkstemp(path);
        CHECK(file >= 0);
        close(file);
    }
    MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
}

static void send_all(int count) {
    const size_t all = (size_t)LENGTHS * (size_t)count;
    MPI_Request *requests = malloc((size_t)(size - 1) * all * sizeof *requests), *next = requests;
    CHECK(requests != NULL);
    for (int number = 0; number < LENGTHS; number++) {
        for (int at = 0; at < count; at++) {
            for (int to = 1; to < size; to++) {
                MPI_Isend(bytes + at % OFFSETS, lengths[number], MPI_BYTE, to, at % 3, MPI_COMM_WORLD, next++);
            }
        }
    }
    CHECK(unlink(path) == 0);
    CHECK(next - requests <= INT_MAX);
    MPI_Waitall((int)(next - requests), requests, MPI_STATUSES_IGNORE);
    free(requests);
}

static void receive_all(int count) {
    const double end = MPI_Wtime() + LIMIT;
    while (access(path, F_OK) == 0) {
        CHECK(MPI_Wtime() < end);
        usleep(1000);
    }
    for (int number = 0; number < LENGTHS; number++) {
        for (int at = 0; at < count; at++) {
            MPI_Status status;
            int length;
            MPI_Recv(in, LONGEST, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &length);
            CHECK(length == lengths[number] && status.MPI_TAG == at % 3);
            CHECK(memcmp(in, bytes + at % OFFSETS, (size_t)length) == 0);
        }
    }
}

int main(int argc, char **argv) {
    const int all = getenv("NEMESIA_QUICK") != NULL ? 20000 : 100000;
    begin(&argc, &argv);
    const int count = all / (size - 1);
    fill(bytes, sizeof bytes, 0, 0);
    make_file();
    if (rank == 0) send_all(count);
    else receive_all(count);
    return end("local");
}
