/* Collective calls among processes whose endpoints open alone: `peer_groups CASE`. The processes exchange their
 * addresses through shared memory. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 5, VICTIM = 2 };

struct store {
    pthread_barrier_t barrier;
    uint8_t addresses[SIZE][NEMESIA_ADDRESS_BYTES];
};

static nemesia_endpoint *opened(uint32_t threads, uint8_t *address) {
    nemesia_config *config = NULL;
    nemesia_endpoint *endpoint = NULL;
    OK(nemesia_config_default(&config));
    OK(nemesia_config_set_threads(config, threads));
    OK(nemesia_endpoint_alone(config, &endpoint));
    nemesia_config_destroy(config);
    OK(nemesia_endpoint_address(endpoint, address));
    return endpoint;
}

/* All processes meet in the order 4 0 3 1 2; one dies by a signal; the others go on. */
static void process(struct store *store, int own) {
    static const int order[SIZE] = {4, 0, 3, 1, VICTIM};
    uint8_t group[SIZE][NEMESIA_ADDRESS_BYTES], left[SIZE][NEMESIA_ADDRESS_BYTES];
    nemesia_endpoint *endpoint = opened(NEMESIA_THREADS_SINGLE, store->addresses[own]);
    int32_t places[SIZE], count = -1, place = -1, gone = -1, status;
    uint64_t flags = 0;
    int at, round;
    pthread_barrier_wait(&store->barrier);
    for (at = 0; at < SIZE; at++) memcpy(group[at], store->addresses[order[at]], sizeof group[at]);
    for (round = 0; round < 10; round++) {
        OK(nemesia_endpoint_barrier_group(endpoint, SIZE, group[0]));
        OK(nemesia_endpoint_agree_group(endpoint, SIZE, group[0], (1u << own) | 64, &flags, &gone));
        CHECK(flags == 64 && gone == 0);
        OK(nemesia_endpoint_shrink_group(endpoint, SIZE, group[0], places, &count, &place));
        CHECK(count == SIZE && order[place] == own && places[place] == place);
    }
    OK(nemesia_endpoint_barrier_group(endpoint, SIZE, group[0]));
    if (own == VICTIM) raise(SIGKILL);
    status = nemesia_endpoint_barrier_group(endpoint, SIZE, group[0]);
    CHECK(status == NEMESIA_ERR_PEER_FAILED && order[nemesia_last_error_rank()] == VICTIM);
    OK(nemesia_endpoint_agree_group(endpoint, SIZE, group[0], 3, &flags, &gone));
    CHECK(flags == 3 && gone == 1);
    OK(nemesia_endpoint_shrink_group(endpoint, SIZE, group[0], places, &count, &place));
    CHECK(count == SIZE - 1 && order[places[place]] == own);
    for (at = 0; at < count; at++) memcpy(left[at], group[places[at]], sizeof left[at]);
    for (round = 0; round < 10; round++) OK(nemesia_endpoint_barrier_group(endpoint, (size_t)count, left[0]));
    OK(nemesia_endpoint_agree_group(endpoint, (size_t)count, left[0], 5, &flags, NULL));
    CHECK(flags == 5);
    OK(nemesia_endpoint_barrier_group(endpoint, (size_t)count, left[0]));
    OK(nemesia_endpoint_close(endpoint));
}

static void processes(void) {
    struct store *store =
        mmap(NULL, sizeof *store, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    pid_t children[SIZE];
    int own, status;
    CHECK(store != MAP_FAILED);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&store->barrier, &shared, SIZE);
    for (own = 0; own < SIZE; own++) {
        children[own] = fork();
        CHECK(children[own] >= 0);
        if (children[own] == 0) {
            process(store, own);
            exit(EXIT_SUCCESS);
        }
    }
    for (own = 0; own < SIZE; own++) {
        CHECK(waitpid(children[own], &status, 0) == children[own]);
        if (own == VICTIM) {
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        } else {
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
        }
    }
}

/* The thread of the other endpoint of `threads`. */
static void *other(void *shared) {
    struct store *store = shared;
    nemesia_endpoint *endpoint = opened(NEMESIA_THREADS_MULTIPLE, store->addresses[1]);
    uint64_t flags;
    pthread_barrier_wait(&store->barrier);
    OK(nemesia_endpoint_barrier_group(endpoint, 2, store->addresses[0]));
    OK(nemesia_endpoint_agree_group(endpoint, 2, store->addresses[0], 6, &flags, NULL));
    CHECK(flags == 2);
    OK(nemesia_endpoint_barrier_group(endpoint, 2, store->addresses[0]));
    OK(nemesia_endpoint_close(endpoint));
    return NULL;
}

/* Endpoints that several threads may use; and arguments that are refused. */
static void arguments(void) {
    static struct store store;
    nemesia_endpoint *endpoint = opened(NEMESIA_THREADS_MULTIPLE, store.addresses[0]), *world = NULL;
    const uint8_t *group = store.addresses[0];
    int32_t places[2], count, place;
    uint64_t flags = 99;
    pthread_t thread;
    pthread_barrier_init(&store.barrier, NULL, 2);
    CHECK(pthread_create(&thread, NULL, other, &store) == 0);
    pthread_barrier_wait(&store.barrier);
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_barrier_group(endpoint, 2, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_barrier_group(endpoint, 0, group));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_barrier_group(endpoint, 1, store.addresses[1]));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_barrier_group(NULL, 2, group));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_agree_group(endpoint, 2, NULL, 1, &flags, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_agree_group(endpoint, 2, group, 1, NULL, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_shrink_group(endpoint, 2, group, NULL, &count, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_shrink_group(endpoint, 2, group, places, NULL, NULL));
    CHECK(flags == 99);
    OK(nemesia_endpoint_barrier_group(endpoint, 2, group));
    OK(nemesia_endpoint_agree_group(endpoint, 2, group, 3, &flags, NULL));
    CHECK(flags == 2);
    OK(nemesia_endpoint_barrier_group(endpoint, 2, group));
    OK(nemesia_endpoint_shrink_group(endpoint, 1, group, places, &count, &place));
    CHECK(count == 1 && places[0] == 0 && place == 0);
    pthread_join(thread, NULL);
    OK(nemesia_endpoint_close(endpoint));
    OK(nemesia_endpoint_open(NULL, &world));
    CHECK(nemesia_endpoint_barrier_group(world, 2, group) < 0);
    OK(nemesia_endpoint_close(world));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (strcmp(argv[1], "processes") == 0) processes();
    else if (strcmp(argv[1], "arguments") == 0) arguments();
    else CHECK(0);
    return EXIT_SUCCESS;
}
