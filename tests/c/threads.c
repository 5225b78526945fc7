/* Threads: `threads together` is started twice by the launcher, the other cases once; see main. */
#define _POSIX_C_SOURCE 200809L
#include "operation.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 6, ROUNDS = 60, WINDOW = 8, LARGEST = 100000, WORLD = 4, PAIRS = 64 };
static const int64_t FOR_EVER = -1;
static const size_t LENS[] = {8, 0, 1000, 1, LARGEST, 4096};

static void start(pthread_t *thread, void *(*body)(void *), void *argument) {
    CHECK(pthread_create(thread, NULL, body, argument) == 0);
}

static void join(pthread_t thread) { CHECK(pthread_join(thread, NULL) == 0); }

static nemesia_config *config_for(uint32_t threads) {
    nemesia_config *config = NULL;
    OK(nemesia_config_from_environment(&config));
    OK(nemesia_config_set_threads(config, threads));
    return config;
}

/* ---- One endpoint, many threads. ---- */
static nemesia_endpoint *endpoint;
static int32_t peer, rank;

/* The number selects how a thread sends and receives. */
struct talker {
    unsigned number;
    unsigned char sent[WINDOW][LARGEST], received[WINDOW][LARGEST];
};

static unsigned char byte(uint64_t tag, size_t at) { return (unsigned char)(tag * 37 + at * 31); }

static uint64_t tag_of(const struct talker *talker, unsigned round, unsigned at) {
    return (uint64_t)talker->number << 32 | round << 8 | at;
}

static void fill(unsigned char *bytes, size_t len, uint64_t tag) {
    size_t at;
    for (at = 0; at < len; at++) bytes[at] = byte(tag, at);
}

static void look(const unsigned char *bytes, size_t len, uint64_t tag) {
    size_t at;
    for (at = 0; at < len; at++) CHECK(bytes[at] == byte(tag, at));
}

/* Blocking calls: rank 0 sends first. */
static void by_turns(struct talker *talker, size_t len, uint64_t tag) {
    nemesia_status status;
    if (rank == 0) OK(nemesia_endpoint_send(endpoint, peer, tag, talker->sent[0], len));
    OK(nemesia_endpoint_recv(endpoint, peer, tag, 0, len, talker->received[0], &status));
    CHECK(status.rank == peer && status.tag == tag && status.len == len);
    if (rank == 1) OK(nemesia_endpoint_send(endpoint, peer, tag, talker->sent[0], len));
}

/* Synchronous sends in a context; the receiver probes first. */
static void by_probes(struct talker *talker, size_t len, uint64_t tag) {
    const nemesia_operation sent = in_mode(NEMESIA_SEND_SYNCHRONOUS, in_context(9, peer, tag, talker->sent[0], len));
    nemesia_operation flush = in_context(0, peer, 0, NULL, 0);
    uint64_t message = 0;
    nemesia_status status;
    flush.kind = NEMESIA_OPERATION_FLUSH;
    if (rank == 0) OK(send_op(endpoint, sent));
    OK(nemesia_endpoint_probe(endpoint, 9, NEMESIA_ANY_SOURCE, tag, 0, FOR_EVER, &status));
    CHECK(status.len == len);
    if (len % 16 == 0) {
        OK(nemesia_endpoint_mprobe(endpoint, 9, peer, tag, 0, FOR_EVER, &message, NULL));
        OK(nemesia_endpoint_mrecv(endpoint, message, len, talker->received[0], &status));
    } else {
        OK(recv_op(endpoint, in_context(9, peer, tag, talker->received[0], len), &status));
    }
    CHECK(status.tag == tag && status.len == len);
    if (rank == 1) OK(send_op(endpoint, sent));
    OK(nemesia_endpoint_run(endpoint, &flush, NULL));
}

/* Requests that are waited for or tested. */
static void by_requests(struct talker *talker, size_t len, uint64_t tag) {
    uint64_t in, out;
    int32_t found = NEMESIA_PENDING;
    OK(nemesia_endpoint_irecv(endpoint, peer, tag, 0, len, talker->received[0], &in));
    OK(nemesia_endpoint_isend(endpoint, peer, tag, talker->sent[0], len, &out));
    while (talker->number % 2 == 0 && found == NEMESIA_PENDING) found = nemesia_endpoint_test(endpoint, in, NULL);
    if (talker->number % 2 == 1) found = nemesia_endpoint_wait(endpoint, in, FOR_EVER, NULL);
    OK(found);
    OK(nemesia_endpoint_wait(endpoint, out, FOR_EVER, NULL));
}

/* A window of requests. */
static void by_windows(struct talker *talker, size_t len, unsigned round) {
    uint64_t requests[2 * WINDOW];
    unsigned at;
    for (at = 0; at < WINDOW; at++) {
        const uint64_t tag = tag_of(talker, round, at);
        fill(talker->sent[at], len, tag);
        OK(nemesia_endpoint_irecv(endpoint, peer, tag, 0, len, talker->received[at], &requests[at]));
    }
    for (at = 0; at < WINDOW; at++) {
        const uint64_t tag = tag_of(talker, round, at);
        OK(nemesia_endpoint_isend(endpoint, peer, tag, talker->sent[at], len, &requests[WINDOW + at]));
    }
    OK(nemesia_endpoint_wait_all(endpoint, 2 * WINDOW, requests, FOR_EVER, NULL));
    for (at = 0; at < WINDOW; at++) look(talker->received[at], len, tag_of(talker, round, at));
}

/* The memory that the peer's threads use, each its own part; the last word is for all. */
static union {
    unsigned char bytes[THREADS * LARGEST + 8];
    uint64_t aligned;
} shared;
static const nemesia_remote_key NOTHING_KNOWN;
static unsigned handled;

static void handle(void *context, int32_t from, const void *header, size_t header_len, const void *payload, size_t len,
                   nemesia_incoming *message) {
    unsigned *count = context;
    CHECK(from == peer && header_len == sizeof(unsigned) && len == 1000 && message != NULL);
    look(payload, len, *(const unsigned char *)header);
    /* One thread at a time is here. */
    (*count)++;
}

/* One-sided operations on the peer's memory by its key alone, and an active message. */
static void by_memory(struct talker *talker, size_t len, uint64_t tag) {
    static unsigned char message[THREADS][1000];
    nemesia_remote_key key = NOTHING_KNOWN;
    const uint64_t at = (uint64_t)talker->number * LARGEST;
    uint64_t one = 1, old, request;
    uint32_t flags = len % 16 == 0 ? NEMESIA_RMA_DELIVERED : 0;
    key.key = 7;
    key.rank = peer;
    OK(nemesia_endpoint_put(endpoint, &key, at, talker->sent[0], len, flags));
    memset(talker->received[1], 0, len);
    OK(nemesia_endpoint_get(endpoint, &key, at, len, talker->received[1]));
    look(talker->received[1], len, tag);
    OK(nemesia_endpoint_ifetch(endpoint, &key, sizeof shared - 8, NEMESIA_TYPE_U64, NEMESIA_OP_SUM, &one, &old,
                               &request));
    OK(nemesia_endpoint_wait(endpoint, request, FOR_EVER, NULL));
    CHECK(old < THREADS * ROUNDS);
    fill(message[talker->number], 1000, talker->number);
    OK(nemesia_endpoint_send_active(endpoint, peer, 3, &talker->number, sizeof talker->number, message[talker->number],
                                    1000));
}

static void *talk(void *argument) {
    struct talker *talker = argument;
    unsigned round;
    for (round = 0; round < ROUNDS; round++) {
        const size_t len = LENS[round % (sizeof LENS / sizeof *LENS)];
        const uint64_t tag = tag_of(talker, round, 0);
        fill(talker->sent[0], len, tag);
        by_memory(talker, len, tag);
        switch (talker->number % 5) {
        case 0: by_turns(talker, len, tag); break;
        case 1: by_probes(talker, len, tag); break;
        case 2: case 3: by_requests(talker, len, tag); break;
        default: by_windows(talker, len, round); continue;
        }
        look(talker->received[0], len, tag);
    }
    /* An error is reported to the thread that caused it. */
    GIVES(NEMESIA_ERR_RANK, nemesia_endpoint_send(endpoint, 2 + (int32_t)talker->number, 1, NULL, 0));
    CHECK(strstr(nemesia_last_error_message(), "does not exist") != NULL);
    return NULL;
}

static void together(void) {
    static struct talker talkers[THREADS];
    pthread_t threads[THREADS];
    nemesia_config *config = config_for(NEMESIA_THREADS_MULTIPLE);
    uint64_t region, sum = 0;
    unsigned at;
    OK(nemesia_endpoint_open(config, &endpoint));
    nemesia_config_destroy(config);
    OK(nemesia_endpoint_rank(endpoint, &rank));
    peer = 1 - rank;
    OK(nemesia_endpoint_expose_as(endpoint, &shared, sizeof shared, NEMESIA_ACCESS_READ_WRITE, NEMESIA_EXPOSE_KEY, 7,
                                  &region));
    OK(nemesia_endpoint_set_handler(endpoint, 3, handle, &handled));
    OK(nemesia_endpoint_barrier(endpoint));
    for (at = 0; at < THREADS; at++) {
        talkers[at].number = at;
        start(&threads[at], talk, &talkers[at]);
    }
    for (at = 0; at < THREADS; at++) join(threads[at]);
    OK(nemesia_endpoint_flush(endpoint, NEMESIA_ALL_RANKS));
    while (handled < THREADS * ROUNDS) OK(nemesia_endpoint_progress(endpoint, NULL));
    OK(nemesia_endpoint_barrier(endpoint));
    memcpy(&sum, shared.bytes + sizeof shared - 8, sizeof sum);
    CHECK(sum == THREADS * ROUNDS);
    OK(nemesia_endpoint_unexpose(endpoint, region));
    OK(nemesia_endpoint_close(endpoint));
}

/* ---- Several endpoints in one process, each a rank of one world, with a thread of its own. ---- */
static struct {
    pthread_mutex_t lock;
    pthread_barrier_t barrier;
    int used;
    char keys[PAIRS][64], values[PAIRS][NEMESIA_EXCHANGE_VALUE_BYTES];
} store;

static int32_t own_rank(void *context) { return *(int32_t *)context; }

static int32_t own_size(void *context) {
    (void)context;
    return WORLD;
}

static int32_t put(void *context, const char *key, const char *value) {
    (void)context;
    pthread_mutex_lock(&store.lock);
    CHECK(store.used < PAIRS && strlen(key) < sizeof *store.keys && strlen(value) < sizeof *store.values);
    strcpy(store.keys[store.used], key);
    strcpy(store.values[store.used++], value);
    pthread_mutex_unlock(&store.lock);
    return 0;
}

static int32_t get(void *context, const char *key, size_t bytes, char *out_value) {
    int at, found = 1;
    (void)context;
    pthread_mutex_lock(&store.lock);
    for (at = 0; at < store.used && found != 0; at++) {
        if (strcmp(store.keys[at], key) == 0 && strlen(store.values[at]) < bytes) {
            strcpy(out_value, store.values[at]);
            found = 0;
        }
    }
    pthread_mutex_unlock(&store.lock);
    return found;
}

static int32_t meet(void *context) {
    (void)context;
    pthread_barrier_wait(&store.barrier);
    return 0;
}

static nemesia_endpoint *open_rank(int32_t *of) {
    nemesia_config *config = config_for(NEMESIA_THREADS_SINGLE);
    nemesia_endpoint *opened = NULL;
    nemesia_exchange exchange;
    memset(&exchange, 0, sizeof exchange);
    exchange.struct_size = sizeof exchange;
    exchange.context = of;
    exchange.rank = own_rank;
    exchange.size = own_size;
    exchange.put = put;
    exchange.get = get;
    exchange.barrier = meet;
    OK(nemesia_endpoint_open_with(config, &exchange, &opened));
    nemesia_config_destroy(config);
    return opened;
}

/* Every rank sends to every rank, many times. */
static void *live(void *argument) {
    int32_t mine = *(int32_t *)argument, other, round;
    nemesia_endpoint *own = open_rank(&mine);
    for (round = 0; round < ROUNDS; round++) {
        uint64_t requests[2 * WORLD];
        int32_t received[WORLD];
        for (other = 0; other < WORLD; other++) {
            OK(nemesia_endpoint_irecv(own, other, (uint64_t)round, 0, sizeof mine, &received[other], &requests[other]));
            OK(nemesia_endpoint_isend(own, other, (uint64_t)round, &mine, sizeof mine, &requests[WORLD + other]));
        }
        OK(nemesia_endpoint_wait_all(own, 2 * WORLD, requests, FOR_EVER, NULL));
        for (other = 0; other < WORLD; other++) CHECK(received[other] == other);
    }
    OK(nemesia_endpoint_close(own));
    return NULL;
}

static void several(void) {
    pthread_t threads[WORLD];
    int32_t ranks[WORLD], at;
    for (at = 0; at < WORLD; at++) {
        ranks[at] = at;
        start(&threads[at], live, &ranks[at]);
    }
    for (at = 0; at < WORLD; at++) join(threads[at]);
}

/* ---- A thread that uses an endpoint of another thread. ---- */
struct owner {
    int32_t rank;
    nemesia_endpoint *endpoint;
};

static void *open_own(void *argument) {
    struct owner *owner = argument;
    owner->endpoint = open_rank(&owner->rank);
    return NULL;
}

static void *await(void *argument) {
    int32_t got = -1, found;
    /* The main thread may be in a call at that moment. */
    do found = nemesia_endpoint_recv(argument, 1, 5, 0, sizeof got, &got, NULL);
    while (found == NEMESIA_ERR_THREADS);
    OK(found);
    CHECK(got == 77);
    return NULL;
}

static void alone(void) {
    const struct timespec moment = {0, 20000000};
    struct owner owners[WORLD];
    pthread_t threads[WORLD], waiting;
    int32_t at, found = NEMESIA_OK, value = 77;
    nemesia_config *config = NULL;
    OK(nemesia_config_default(&config));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_set_threads(config, 2));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_config_set_threads(NULL, NEMESIA_THREADS_SINGLE));
    nemesia_config_destroy(config);
    for (at = 0; at < WORLD; at++) {
        owners[at].rank = at;
        start(&threads[at], open_own, &owners[at]);
    }
    for (at = 0; at < WORLD; at++) join(threads[at]);
    /* The endpoints move to other threads, which is allowed. */
    start(&waiting, await, owners[0].endpoint);
    /* Simultaneous use is an error. It is detected once the other thread waits. */
    while (found == NEMESIA_OK) {
        nanosleep(&moment, NULL);
        at = -1;
        found = nemesia_endpoint_rank(owners[0].endpoint, &at);
        CHECK(found == NEMESIA_OK ? at == 0 : at == -1);
    }
    GIVES(NEMESIA_ERR_THREADS, found);
    CHECK(strstr(nemesia_last_error_message(), "another thread") != NULL);
    GIVES(NEMESIA_ERR_THREADS, nemesia_endpoint_send(owners[0].endpoint, 1, 5, NULL, 0));
    GIVES(NEMESIA_ERR_THREADS, nemesia_endpoint_recv(owners[0].endpoint, 1, 5, 0, 0, NULL, NULL));
    /* The endpoint is unharmed. */
    OK(nemesia_endpoint_send(owners[1].endpoint, 0, 5, &value, sizeof value));
    join(waiting);
    OK(nemesia_endpoint_rank(owners[0].endpoint, &at));
    for (at = 0; at < WORLD; at++) OK(nemesia_endpoint_close(owners[at].endpoint));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    alarm(120);
    CHECK(pthread_mutex_init(&store.lock, NULL) == 0 && pthread_barrier_init(&store.barrier, NULL, WORLD) == 0);
    if (strcmp(argv[1], "together") == 0) {
        together();
    } else if (strcmp(argv[1], "several") == 0) {
        several();
    } else if (strcmp(argv[1], "alone") == 0) {
        alone();
    } else {
        fail_at(__FILE__, __LINE__, "no such case");
    }
    return EXIT_SUCCESS;
}
