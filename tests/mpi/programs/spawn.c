/* All ranks together start two processes, which talk to them and to each other. */
#include "check.h"

enum { CHILDREN = 2, LENGTH = 100003 };

/* Every process to every one of the other group, by the rank there. */
static void talk(MPI_Comm others, int mine, int count, int theirs) {
    unsigned char *out = malloc(LENGTH), *in = malloc(LENGTH);
    CHECK(out != NULL && in != NULL);
    for (int at = 0; at < count; at++) {
        fill(out, LENGTH, mine, at);
        MPI_Sendrecv(out, LENGTH, MPI_BYTE, at, 3, in, LENGTH, MPI_BYTE, at, 3, others, MPI_STATUS_IGNORE);
        CHECK(is_filled(in, LENGTH, theirs + at, mine % 1000));
    }
    free(out), free(in);
}

int main(int count, char **words) {
    MPI_Comm others, all;
    int theirs, sum;
    begin(&count, &words);
    MPI_Comm_get_parent(&others);
    const int is_child = others != MPI_COMM_NULL;
    if (!is_child) {
        MPI_Comm_spawn(words[0], MPI_ARGV_NULL, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others,
                       MPI_ERRCODES_IGNORE);
    }
    MPI_Comm_remote_size(others, &theirs);
    /* The numbers of the children begin at 1000. */
    talk(others, (is_child ? 1000 : 0) + rank, theirs, is_child ? 0 : 1000);
    MPI_Intercomm_merge(others, is_child, &all);
    const int one = 1;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, all);
    CHECK(sum == size + theirs);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&others);
    if (is_child) {
        CHECK(has_nemesia());
        MPI_Finalize();
        return 0;
    }
    return end("spawn");
}
