/* A launcher of its own, with a key-value space of its own, that starts a rank again: rank 1 is killed twice, and the
 * others readmit its next process. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 3, PAIRS = 16, MORTAL = 1, RESTARTS = 2 };

struct member {
    uint64_t incarnation, turn;
    char address[NEMESIA_EXCHANGE_VALUE_BYTES];
};

struct store {
    pthread_barrier_t barrier;
    pthread_mutex_t lock;
    int used;
    uint64_t turns;
    struct member members[SIZE];
    struct {
        char key[64];
        char value[NEMESIA_EXCHANGE_VALUE_BYTES];
    } pairs[PAIRS];
};

struct context {
    struct store *store;
    int32_t rank;
    uint64_t incarnation;
};

static int32_t own_rank(void *context) { return ((struct context *)context)->rank; }

static int32_t own_size(void *context) {
    (void)context;
    return SIZE;
}

static uint64_t own_incarnation(void *context) { return ((struct context *)context)->incarnation; }

static int32_t restarts(void *context) {
    (void)context;
    return 1;
}

static int32_t put(void *context, const char *key, const char *value) {
    struct store *store = ((struct context *)context)->store;
    pthread_mutex_lock(&store->lock);
    CHECK(store->used < PAIRS && ((struct context *)context)->incarnation == 0);
    strcpy(store->pairs[store->used].key, key);
    strcpy(store->pairs[store->used].value, value);
    store->used++;
    pthread_mutex_unlock(&store->lock);
    return 0;
}

static int32_t get(void *context, const char *key, size_t bytes, char *out_value) {
    struct store *store = ((struct context *)context)->store;
    int at;
    for (at = 0; at < store->used; at++) {
        if (strcmp(store->pairs[at].key, key) == 0 && strlen(store->pairs[at].value) < bytes) {
            strcpy(out_value, store->pairs[at].value);
            return 0;
        }
    }
    return 404;
}

static int32_t meet(void *context) {
    CHECK(((struct context *)context)->incarnation == 0);
    pthread_barrier_wait(&((struct context *)context)->store->barrier);
    return 0;
}

static int32_t join(void *context, const char *address, uint64_t *out_turn) {
    struct context *own = context;
    struct member *member = &own->store->members[own->rank];
    pthread_mutex_lock(&own->store->lock);
    member->incarnation = own->incarnation;
    member->turn = ++own->store->turns;
    strcpy(member->address, address);
    *out_turn = member->turn;
    pthread_mutex_unlock(&own->store->lock);
    return 0;
}

static int32_t member(void *context, int32_t rank, uint64_t *out_incarnation, uint64_t *out_turn, size_t bytes,
                      char *out_address) {
    struct store *store = ((struct context *)context)->store;
    pthread_mutex_lock(&store->lock);
    CHECK(rank >= 0 && rank < SIZE && strlen(store->members[rank].address) < bytes);
    *out_incarnation = store->members[rank].incarnation;
    *out_turn = store->members[rank].turn;
    strcpy(out_address, store->members[rank].address);
    pthread_mutex_unlock(&store->lock);
    return 0;
}

/* The survivors wait until the mortal has died and come back, and readmit it. */
static void readmit(nemesia_endpoint *endpoint) {
    int32_t ranks[SIZE], count = 0, failure = NEMESIA_FAILURE_NONE;
    while (failure == NEMESIA_FAILURE_NONE) {
        OK(nemesia_endpoint_progress(endpoint, NULL));
        OK(nemesia_endpoint_peer_failure(endpoint, MORTAL, &failure));
    }
    while (count == 0) {
        OK(nemesia_endpoint_progress(endpoint, NULL));
        OK(nemesia_endpoint_restarted(endpoint, ranks, &count));
    }
    CHECK(count == 1 && ranks[0] == MORTAL);
    OK(nemesia_endpoint_readmit(endpoint, MORTAL));
}

/* Each process sends the generation around the ring. */
static void around(nemesia_endpoint *endpoint, int32_t rank, uint64_t generation) {
    int32_t next = (rank + 1) % SIZE, before = (rank + SIZE - 1) % SIZE;
    uint64_t got = 99;
    OK(nemesia_endpoint_send(endpoint, next, generation, &generation, sizeof generation));
    OK(nemesia_endpoint_recv(endpoint, before, generation, 0, sizeof got, &got, NULL));
    CHECK(got == generation);
}

static void run(struct store *store, int32_t rank, uint64_t incarnation) {
    struct context context;
    nemesia_exchange exchange;
    nemesia_config *config = NULL;
    nemesia_endpoint *endpoint = NULL;
    uint64_t generation, given = 99;
    context.store = store;
    context.rank = rank;
    context.incarnation = incarnation;
    memset(&exchange, 0, sizeof exchange);
    exchange.struct_size = sizeof exchange;
    exchange.context = &context;
    exchange.rank = own_rank;
    exchange.size = own_size;
    exchange.put = put;
    exchange.get = get;
    exchange.barrier = meet;
    exchange.incarnation = own_incarnation;
    exchange.restarts = restarts;
    exchange.join = join;
    OK(nemesia_config_default(&config));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_open_with(config, &exchange, &endpoint));
    exchange.member = member;
    OK(nemesia_endpoint_open_with(config, &exchange, &endpoint));
    nemesia_config_destroy(config);
    OK(nemesia_endpoint_incarnation(endpoint, &given));
    CHECK(given == incarnation);
    for (generation = incarnation; generation <= RESTARTS; generation++) {
        uint64_t flags = 0;
        around(endpoint, rank, generation);
        OK(nemesia_endpoint_agree(endpoint, generation, &flags, NULL));
        CHECK(flags == generation);
        if (generation == RESTARTS) break;
        if (rank == MORTAL) raise(SIGKILL);
        readmit(endpoint);
    }
    OK(nemesia_endpoint_barrier(endpoint));
    OK(nemesia_endpoint_close(endpoint));
}

static pid_t start(struct store *store, int32_t rank, uint64_t incarnation) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(300);
        run(store, rank, incarnation);
        exit(EXIT_SUCCESS);
    }
    return child;
}

int main(void) {
    struct store *store = mmap(NULL, sizeof *store, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t barrier;
    pthread_mutexattr_t lock;
    pid_t mortal = -1;
    uint64_t incarnation = 0;
    int32_t rank, left = SIZE;
    CHECK(store != MAP_FAILED);
    pthread_barrierattr_init(&barrier);
    pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&store->barrier, &barrier, SIZE);
    pthread_mutexattr_init(&lock);
    pthread_mutexattr_setpshared(&lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&store->lock, &lock);
    for (rank = 0; rank < SIZE; rank++) {
        pid_t child = start(store, rank, 0);
        if (rank == MORTAL) mortal = child;
    }
    while (left > 0) {
        int status = -1;
        pid_t ended = wait(&status);
        CHECK(ended > 0);
        if (ended == mortal && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
            pthread_mutex_lock(&store->lock);
            store->members[MORTAL].turn = 0;
            pthread_mutex_unlock(&store->lock);
            incarnation++;
            mortal = start(store, MORTAL, incarnation);
            continue;
        }
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
        left--;
    }
    CHECK(incarnation == RESTARTS);
    return EXIT_SUCCESS;
}
