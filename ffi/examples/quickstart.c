/* Rank 0 sends a message to rank 1. Compile and run:
 *   cc quickstart.c $(pkg-config --cflags --libs nemesia) -o quickstart && nemesia run -n 2 ./quickstart */
#include <nemesia.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int32_t status) {
    if (status >= 0) return;
    fprintf(stderr, "%s\n", nemesia_last_error_message());
    exit(EXIT_FAILURE);
}

int main(void) {
    nemesia_endpoint *endpoint;
    char text[16];
    int32_t rank, size;
    check(nemesia_endpoint_open(NULL, &endpoint));
    check(nemesia_endpoint_rank(endpoint, &rank));
    check(nemesia_endpoint_size(endpoint, &size));
    if (rank == 0) {
        check(nemesia_endpoint_send(endpoint, 1, 7, "hello", 6));
    } else if (rank == 1) {
        check(nemesia_endpoint_recv(endpoint, 0, 7, 0, sizeof text, text, NULL));
        printf("rank %d of %d received: %s\n", (int)rank, (int)size, text);
    }
    check(nemesia_endpoint_barrier(endpoint));
    check(nemesia_endpoint_close(endpoint));
    return EXIT_SUCCESS;
}
