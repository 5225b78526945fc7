/* A program of MPI that opens an endpoint as well: `mpiexec.hydra -n 2 host_mpi`. */
#include "check.h"

#include <mpi.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    nemesia_endpoint *endpoint = NULL;
    int mine = 1, sum = 0;
    CHECK(MPI_Init(&argc, &argv) == MPI_SUCCESS);
    GIVES(NEMESIA_ERR_BOOTSTRAP, nemesia_endpoint_open(NULL, &endpoint));
    CHECK(strstr(nemesia_last_error_message(), "MPI_Initialized") != NULL);
    /* MPI still has its connection. */
    CHECK(MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS && sum == 2);
    CHECK(MPI_Finalize() == MPI_SUCCESS);
    /* One write: both ranks write to one pipe. */
    CHECK(write(STDOUT_FILENO, "finalized\n", 10) == 10);
    return EXIT_SUCCESS;
}
