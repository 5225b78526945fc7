/* The last rank ends by a signal, while all others wait for it: the job must end by itself, and with an error. */
#include "check.h"

#include <signal.h>

int main(int count, char **words) {
    int value = 0;
    begin(&count, &words);
    MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == size - 1) raise(SIGKILL);
    MPI_Recv(&value, 1, MPI_INT, size - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return end("killed");
}
