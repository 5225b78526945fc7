/* Embeds Nemesia in a runtime that already connects its processes: three forked processes with their own store. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 3, PAIRS = 32, REFUSAL = 1234 };

struct store {
    pthread_barrier_t barrier;
    pthread_mutex_t lock;
    int used;
    struct {
        char key[64];
        char value[NEMESIA_EXCHANGE_VALUE_BYTES];
    } pairs[PAIRS];
};

struct context {
    struct store *store;
    int32_t rank;
};

static int32_t own_rank(void *context) { return ((struct context *)context)->rank; }

static int32_t own_size(void *context) {
    (void)context;
    return SIZE;
}

static int32_t put(void *context, const char *key, const char *value) {
    struct store *store = ((struct context *)context)->store;
    CHECK(strlen(key) < 64 && strlen(value) < NEMESIA_EXCHANGE_VALUE_BYTES);
    pthread_mutex_lock(&store->lock);
    CHECK(store->used < PAIRS);
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
        if (strcmp(store->pairs[at].key, key) == 0) {
            CHECK(strlen(store->pairs[at].value) < bytes);
            strcpy(out_value, store->pairs[at].value);
            return 0;
        }
    }
    return REFUSAL;
}

static int32_t meet(void *context) {
    pthread_barrier_wait(&((struct context *)context)->store->barrier);
    return 0;
}

static int32_t refuse(void *context, const char *key, const char *value) {
    (void)context, (void)key, (void)value;
    return REFUSAL;
}

static nemesia_exchange exchange_of(struct context *context) {
    nemesia_exchange exchange;
    memset(&exchange, 0, sizeof exchange);
    exchange.struct_size = sizeof exchange;
    exchange.context = context;
    exchange.rank = own_rank;
    exchange.size = own_size;
    exchange.put = put;
    exchange.get = get;
    exchange.barrier = meet;
    return exchange;
}

/* Each process sends its rank around the ring. */
static void around(nemesia_endpoint *endpoint, int32_t rank) {
    int32_t next = (rank + 1) % SIZE, before = (rank + SIZE - 1) % SIZE, got = -1;
    nemesia_status status;
    OK(nemesia_endpoint_send(endpoint, next, 1, &rank, sizeof rank));
    OK(nemesia_endpoint_recv(endpoint, before, 1, 0, sizeof got, &got, &status));
    CHECK(got == before && status.rank == before && status.len == sizeof got);
}

/* Two more worlds over the same keys, open at once. */
static void twice(struct context *context, const nemesia_config *config) {
    static const char *const prefixes[2] = {"red.", "blue."};
    nemesia_endpoint *endpoints[2] = {NULL, NULL};
    nemesia_exchange exchange = exchange_of(context);
    int32_t got = -1;
    int world;
    exchange.key_prefix = "not a key";
    GIVES(NEMESIA_ERR_BOOTSTRAP, nemesia_endpoint_open_with(config, &exchange, &endpoints[0]));
    for (world = 0; world < 2; world++) {
        exchange.key_prefix = prefixes[world];
        OK(nemesia_endpoint_open_with(config, &exchange, &endpoints[world]));
    }
    for (world = 0; world < 2; world++) around(endpoints[world], context->rank);
    /* A message of one world is not received in the other. */
    OK(nemesia_endpoint_send(endpoints[0], context->rank, 5, &context->rank, sizeof context->rank));
    GIVES(NEMESIA_PENDING, nemesia_endpoint_iprobe(endpoints[1], 0, NEMESIA_ANY_SOURCE, 5, 0, NULL));
    OK(nemesia_endpoint_recv(endpoints[0], context->rank, 5, 0, sizeof got, &got, NULL));
    for (world = 0; world < 2; world++) {
        OK(nemesia_endpoint_barrier(endpoints[world]));
        OK(nemesia_endpoint_close(endpoints[world]));
    }
}

static void run(struct store *store, int32_t rank) {
    struct context context;
    nemesia_exchange exchange;
    nemesia_config *config = NULL;
    nemesia_endpoint *endpoint = NULL;
    int32_t given = -1, size = -1;
    context.store = store;
    context.rank = rank;
    exchange = exchange_of(&context);
    OK(nemesia_config_default(&config));
    OK(nemesia_config_set(config, "NEMESIA_CELLS", "16"));
    OK(nemesia_config_set(config, "NEMESIA_CELL_BYTES", "4096"));
    exchange.put = refuse;
    GIVES(NEMESIA_ERR_BOOTSTRAP, nemesia_endpoint_open_with(config, &exchange, &endpoint));
    CHECK(endpoint == NULL && strstr(nemesia_last_error_message(), "1234") != NULL);
    CHECK(strstr(nemesia_last_error_message(), "caller's own exchange refused put") != NULL);
    exchange.put = put;
    twice(&context, config);
    OK(nemesia_endpoint_open_with(config, &exchange, &endpoint));
    /* The library must not use the configuration or the exchange after this point. */
    nemesia_config_destroy(config);
    memset(&exchange, 0xff, sizeof exchange);
    memset(&context, 0xff, sizeof context);
    OK(nemesia_endpoint_rank(endpoint, &given));
    OK(nemesia_endpoint_size(endpoint, &size));
    CHECK(given == rank && size == SIZE);
    around(endpoint, rank);
    OK(nemesia_endpoint_close(endpoint));
}

static struct store *shared_store(void) {
    struct store *store = mmap(NULL, sizeof *store, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t barrier;
    pthread_mutexattr_t lock;
    CHECK(store != MAP_FAILED);
    pthread_barrierattr_init(&barrier);
    pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&store->barrier, &barrier, SIZE);
    pthread_mutexattr_init(&lock);
    pthread_mutexattr_setpshared(&lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&store->lock, &lock);
    return store;
}

int main(void) {
    struct store *store = shared_store();
    int32_t rank;
    for (rank = 0; rank < SIZE; rank++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60);
            run(store, rank);
            return EXIT_SUCCESS;
        }
    }
    for (rank = 0; rank < SIZE; rank++) {
        int status = -1;
        CHECK(wait(&status) > 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    }
    return EXIT_SUCCESS;
}
