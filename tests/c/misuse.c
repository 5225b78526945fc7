/* Misuse of handles. Each one returns an error and has no other effect. */
#define _POSIX_C_SOURCE 200809L
#include "operation.h"

#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const uint32_t SINGLE = NEMESIA_THREADS_SINGLE, MULTIPLE = NEMESIA_THREADS_MULTIPLE;
static const uint64_t TAG = 5, OTHER_TAG = 99;

/* ---- Worlds of one process, any number per case. ---- */
static int32_t no_rank(void *context) { return (void)context, 0; }
static int32_t one(void *context) { return (void)context, 1; }

static int32_t put(void *context, const char *key, const char *value) {
    return (void)context, (void)key, (void)value, 0;
}

static int32_t get(void *context, const char *key, size_t bytes, char *out_value) {
    return (void)context, (void)key, (void)bytes, (void)out_value, 1;
}

static int32_t barrier(void *context) { return (void)context, 0; }

static nemesia_config *configuration(uint32_t threads) {
    nemesia_config *config = NULL;
    OK(nemesia_config_default(&config));
    OK(nemesia_config_set_threads(config, threads));
    return config;
}

static int32_t open_as(const nemesia_config *config, nemesia_endpoint **out) {
    nemesia_exchange exchange;
    memset(&exchange, 0, sizeof exchange);
    exchange.struct_size = sizeof exchange;
    exchange.rank = no_rank;
    exchange.size = one;
    exchange.put = put;
    exchange.get = get;
    exchange.barrier = barrier;
    return nemesia_endpoint_open_with(config, &exchange, out);
}

static nemesia_endpoint *opened(uint32_t threads) {
    nemesia_config *config = configuration(threads);
    nemesia_endpoint *endpoint = NULL;
    OK(open_as(config, &endpoint));
    nemesia_config_destroy(config);
    return endpoint;
}

static void says(const char *words) { CHECK(strstr(nemesia_last_error_message(), words) != NULL); }

/* Calls of each sort: on the critical path, guarded, blocking, and queries. */
static void is_refused(nemesia_endpoint *endpoint) {
    unsigned char bytes[8] = {0};
    uint64_t request = 77, operations = 0;
    int32_t rank = -7;
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_send(endpoint, 0, TAG, bytes, 8));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_send(endpoint, 0, TAG, bytes, 3));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_recv(endpoint, 0, TAG, 0, 8, bytes, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_isend(endpoint, 0, TAG, bytes, 8, &request));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_irecv(endpoint, 0, TAG, 0, 8, bytes, &request));
    GIVES(NEMESIA_ERR_HANDLE, send_op(endpoint, in_context(3, 0, TAG, bytes, 8)));
    GIVES(NEMESIA_ERR_HANDLE, isend_op(endpoint, in_context(3, 0, TAG, bytes, 8), &request));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_test(endpoint, NEMESIA_REQUEST_NONE, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_wait(endpoint, NEMESIA_REQUEST_NONE, -1, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_wait_all(endpoint, 1, &operations, -1, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_probe(endpoint, 0, 0, TAG, 0, -1, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_mprobe(endpoint, 0, 0, TAG, 0, -1, &request, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_mrecv(endpoint, 1, 8, bytes, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_send_active(endpoint, 0, 1, NULL, 0, bytes, 8));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_set_handler(endpoint, 1, NULL, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_flush(endpoint, 0));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_progress(endpoint, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_arm(endpoint));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_rank(endpoint, &rank));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_explain(endpoint, 0, NULL, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_close(endpoint));
    CHECK(nemesia_endpoint_warning(endpoint, 0) == NULL);
    CHECK(request == 77 && rank == -7);
}

static void is_no_configuration(nemesia_config *config) {
    nemesia_endpoint *endpoint = NULL;
    char value[64];
    GIVES(NEMESIA_ERR_HANDLE, nemesia_config_set(config, "NEMESIA_CELLS", "64"));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_config_get(config, "NEMESIA_CELLS", sizeof value, value, NULL));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_config_read_file(config, "/dev/null"));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_config_set_threads(config, SINGLE));
    GIVES(NEMESIA_ERR_HANDLE, open_as(config, &endpoint));
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_open(config, &endpoint));
    CHECK(endpoint == NULL);
    nemesia_config_destroy(config);
}

static void works(nemesia_endpoint *endpoint) {
    uint64_t sent = 0x1234, received = 0;
    OK(nemesia_endpoint_send(endpoint, 0, TAG, &sent, sizeof sent));
    OK(nemesia_endpoint_recv(endpoint, 0, TAG, 0, sizeof received, &received, NULL));
    CHECK(sent == received);
}

/* ---- The cases. ---- */
static void double_close(void) {
    const uint32_t modes[] = {SINGLE, MULTIPLE};
    size_t at;
    for (at = 0; at < 2; at++) {
        nemesia_endpoint *endpoint = opened(modes[at]), *next;
        OK(nemesia_endpoint_close(endpoint));
        GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_close(endpoint));
        says("closed before");
        /* The closed handle does not close the next endpoint. */
        next = opened(modes[at]);
        CHECK(next != endpoint);
        GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_close(endpoint));
        works(next);
        OK(nemesia_endpoint_close(next));
    }
}

static void use_after_close(void) {
    nemesia_endpoint *single = opened(SINGLE), *multiple = opened(MULTIPLE), *next;
    OK(nemesia_endpoint_close(single));
    OK(nemesia_endpoint_close(multiple));
    is_refused(single);
    is_refused(multiple);
    next = opened(SINGLE);
    is_refused(single);
    is_refused(multiple);
    works(next);
    OK(nemesia_endpoint_close(next));
}

static void destroy_twice(void) {
    nemesia_config *config = configuration(SINGLE);
    nemesia_config_destroy(config);
    is_no_configuration(config);
    says("destroyed before");
    nemesia_config_destroy(NULL);
}

static void wrong_kind(void) {
    nemesia_config *config = configuration(SINGLE);
    nemesia_endpoint *endpoint = opened(SINGLE);
    GIVES(NEMESIA_ERR_HANDLE, nemesia_endpoint_close((nemesia_endpoint *)(void *)config));
    says("nemesia_config, and must be a nemesia_endpoint");
    is_refused((nemesia_endpoint *)(void *)config);
    is_no_configuration((nemesia_config *)(void *)endpoint);
    says("nemesia_endpoint, and must be a nemesia_config");
    GIVES(NEMESIA_ERR_HANDLE, nemesia_incoming_reply((nemesia_incoming *)(void *)endpoint, 1, NULL, 0, NULL, 0));
    OK(nemesia_config_set(config, "NEMESIA_CELLS", "64"));
    works(endpoint);
    OK(nemesia_endpoint_close(endpoint));
    nemesia_config_destroy(config);
}

static void foreign(void) {
    static char memory[4096];
    void *heap = malloc(64), *pointers[6];
    size_t at;
    int local = 0;
    CHECK(heap != NULL);
    memset(memory, 0x5a, sizeof memory);
    pointers[0] = memory;
    pointers[1] = memory + 1;
    pointers[2] = heap;
    pointers[3] = &local;
    pointers[4] = (void *)(uintptr_t)1;
    pointers[5] = (void *)UINTPTR_MAX;
    for (at = 0; at < sizeof pointers / sizeof *pointers; at++) {
        is_refused(pointers[at]);
        is_no_configuration(pointers[at]);
        GIVES(NEMESIA_ERR_HANDLE, nemesia_incoming_reply(pointers[at], 1, NULL, 0, NULL, 0));
        says("not a nemesia_incoming that this library made");
    }
    free(heap);
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_close(NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send(NULL, 0, TAG, memory, 8));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_incoming_reply(NULL, 1, NULL, 0, NULL, 0));
}

/* ---- Closing while a thread is in a call. ---- */
static sem_t inside, tried;

/* A handler runs in the call that delivers its message. It waits here until another thread has tried to close. */
static void holds(void *context, int32_t rank, const void *header, size_t header_len, const void *payload, size_t len,
                  nemesia_incoming *message) {
    (void)context, (void)rank, (void)header, (void)header_len, (void)payload, (void)len, (void)message;
    CHECK(sem_post(&inside) == 0 && sem_wait(&tried) == 0);
}

static void *is_in_a_handler(void *endpoint) {
    OK(nemesia_endpoint_send_active(endpoint, 0, 1, NULL, 0, "x", 1));
    OK(nemesia_endpoint_progress(endpoint, NULL));
    return NULL;
}

static void *waits(void *endpoint) {
    uint64_t got = 0;
    OK(nemesia_endpoint_recv(endpoint, 0, OTHER_TAG, 0, sizeof got, &got, NULL));
    CHECK(got == 7);
    return NULL;
}

static void *closes(void *endpoint) {
    static const struct timespec MOMENT = {0, 1000000};
    int32_t closed;
    while ((closed = nemesia_endpoint_close(endpoint)) == NEMESIA_ERR_THREADS) nanosleep(&MOMENT, NULL);
    if (closed == NEMESIA_OK) return endpoint;
    GIVES(NEMESIA_ERR_HANDLE, closed);
    return NULL;
}

static void begin(pthread_t *thread, void *(*body)(void *), nemesia_endpoint *endpoint) {
    CHECK(pthread_create(thread, NULL, body, endpoint) == 0);
}

static void *end(pthread_t thread) {
    void *result = NULL;
    CHECK(pthread_join(thread, &result) == 0);
    return result;
}

static void close_beside_a_handler(uint32_t threads) {
    nemesia_endpoint *endpoint = opened(threads);
    pthread_t other;
    OK(nemesia_endpoint_set_handler(endpoint, 1, holds, NULL));
    begin(&other, is_in_a_handler, endpoint);
    CHECK(sem_wait(&inside) == 0);
    GIVES(NEMESIA_ERR_THREADS, nemesia_endpoint_close(endpoint));
    says("another call uses the endpoint");
    CHECK(sem_post(&tried) == 0);
    end(other);
    works(endpoint);
    OK(nemesia_endpoint_close(endpoint));
    is_refused(endpoint);
}

static void close_while_waiting(void) {
    nemesia_endpoint *endpoint = opened(MULTIPLE);
    nemesia_counters counters;
    uint64_t value = 7;
    pthread_t waiting, closers[4];
    int at, won = 0;
    close_beside_a_handler(SINGLE);
    close_beside_a_handler(MULTIPLE);
    begin(&waiting, waits, endpoint);
    /* Only the waiting thread sleeps, and it does not return before its message arrives. */
    do {
        memset(&counters, 0, sizeof counters);
        counters.struct_size = sizeof counters;
        OK(nemesia_endpoint_counters(endpoint, NEMESIA_ALL_RANKS, &counters));
    } while (counters.sleeps == 0);
    GIVES(NEMESIA_ERR_THREADS, nemesia_endpoint_close(endpoint));
    works(endpoint);
    GIVES(NEMESIA_ERR_THREADS, nemesia_endpoint_close(endpoint));
    OK(nemesia_endpoint_send(endpoint, 0, OTHER_TAG, &value, sizeof value));
    /* Several threads close the endpoint: one succeeds. */
    for (at = 0; at < 4; at++) begin(&closers[at], closes, endpoint);
    for (at = 0; at < 4; at++) won += end(closers[at]) != NULL;
    end(waiting);
    CHECK(won == 1);
    is_refused(endpoint);
}

/* ---- Messages that have ended. ---- */
static nemesia_incoming *kept;
static nemesia_endpoint *own;
static int handled;

static void *replies(void *message) {
    GIVES(NEMESIA_ERR_HANDLE, nemesia_incoming_reply(message, 2, NULL, 0, "r", 1));
    says("does not run in this thread");
    return NULL;
}

static void keeps(void *context, int32_t rank, const void *header, size_t header_len, const void *payload, size_t len,
                  nemesia_incoming *message) {
    pthread_t other;
    (void)context, (void)rank, (void)header, (void)header_len, (void)payload, (void)len;
    /* Refused: the previous message, and this message in another thread. */
    if (kept != NULL) GIVES(NEMESIA_ERR_HANDLE, nemesia_incoming_reply(kept, 2, NULL, 0, "r", 1));
    CHECK(pthread_create(&other, NULL, replies, message) == 0);
    end(other);
    OK(nemesia_incoming_reply(message, 2, NULL, 0, "r", 1));
    /* A handler can neither use nor close its own endpoint. */
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send(own, 0, TAG, NULL, 0));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_close(own));
    kept = message;
    handled++;
}

static void late_reply(void) {
    const uint32_t modes[] = {SINGLE, MULTIPLE};
    size_t at;
    for (at = 0; at < 2; at++) {
        own = opened(modes[at]);
        handled = 0;
        OK(nemesia_endpoint_set_handler(own, 1, keeps, NULL));
        for (; handled < 2;) {
            const int before = handled;
            OK(nemesia_endpoint_send_active(own, 0, 1, "h", 1, "p", 1));
            while (handled == before) OK(nemesia_endpoint_progress(own, NULL));
            replies(kept);
        }
        works(own);
        OK(nemesia_endpoint_close(own));
        replies(kept);
    }
}

/* A handler may use another endpoint, whose handlers then must not use the first one either. */
static nemesia_endpoint *inner;
static int nested;

static void innermost(void *context, int32_t rank, const void *header, size_t header_len, const void *payload,
                      size_t len, nemesia_incoming *message) {
    (void)context, (void)rank, (void)header, (void)header_len, (void)payload, (void)len, (void)message;
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send(inner, 0, TAG, NULL, 0));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_send(own, 0, TAG, NULL, 0));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_close(own));
    nested++;
}

static void outermost(void *context, int32_t rank, const void *header, size_t header_len, const void *payload,
                      size_t len, nemesia_incoming *message) {
    const int before = nested;
    (void)context, (void)rank, (void)header, (void)header_len, (void)payload, (void)len, (void)message;
    OK(nemesia_endpoint_send_active(inner, 0, 1, NULL, 0, NULL, 0));
    while (nested == before) OK(nemesia_endpoint_progress(inner, NULL));
    GIVES(NEMESIA_ERR_ARGUMENT, nemesia_endpoint_close(own));
    works(inner);
}

static void nested_handlers(void) {
    const uint32_t modes[] = {SINGLE, MULTIPLE};
    size_t at;
    for (at = 0; at < 2; at++) {
        own = opened(modes[at]);
        inner = opened(modes[at]);
        nested = 0;
        OK(nemesia_endpoint_set_handler(own, 1, outermost, NULL));
        OK(nemesia_endpoint_set_handler(inner, 1, innermost, NULL));
        OK(nemesia_endpoint_send_active(own, 0, 1, NULL, 0, NULL, 0));
        while (nested == 0) OK(nemesia_endpoint_progress(own, NULL));
        works(own);
        OK(nemesia_endpoint_close(inner));
        OK(nemesia_endpoint_close(own));
    }
}

/* A probed message and a request can be used once. Invalid numbers are refused. */
static void message_twice(void) {
    nemesia_endpoint *endpoint = opened(SINGLE);
    uint64_t message = 0, value = 7, got = 0, request = 0, forged;
    OK(nemesia_endpoint_send(endpoint, 0, TAG, &value, sizeof value));
    OK(nemesia_endpoint_mprobe(endpoint, 0, 0, TAG, 0, -1, &message, NULL));
    OK(nemesia_endpoint_mrecv(endpoint, message, sizeof got, &got, NULL));
    CHECK(got == value);
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_mrecv(endpoint, message, sizeof got, &got, NULL));
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_imrecv(endpoint, message, sizeof got, &got, &request));
    OK(nemesia_endpoint_irecv(endpoint, 0, TAG, 0, sizeof got, &got, &request));
    OK(nemesia_endpoint_send(endpoint, 0, TAG, &value, sizeof value));
    OK(nemesia_endpoint_wait(endpoint, request, -1, NULL));
    GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_wait(endpoint, request, -1, NULL));
    for (forged = 1; forged < 10000; forged++) {
        const uint64_t number = forged * UINT64_C(0x9e3779b97f4a7c15);
        GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_test(endpoint, number, NULL));
        GIVES(NEMESIA_ERR_STALE, nemesia_endpoint_mrecv(endpoint, number, 0, NULL, NULL));
    }
    OK(nemesia_endpoint_close(endpoint));
}

/* In a forked child the endpoint is dead, and close does nothing to the parent's. */
static void forked_child(void) {
    const uint32_t modes[] = {SINGLE, MULTIPLE};
    size_t at;
    for (at = 0; at < 2; at++) {
        nemesia_endpoint *endpoint = opened(modes[at]);
        uint64_t value = 7, request = 0;
        int status = 0;
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            GIVES(NEMESIA_ERR_FORKED, nemesia_endpoint_send(endpoint, 0, TAG, &value, sizeof value));
            GIVES(NEMESIA_ERR_FORKED, nemesia_endpoint_recv(endpoint, 0, TAG, 0, sizeof value, &value, NULL));
            GIVES(NEMESIA_ERR_FORKED, nemesia_endpoint_irecv(endpoint, 0, TAG, 0, sizeof value, &value, &request));
            GIVES(NEMESIA_ERR_FORKED, nemesia_endpoint_barrier(endpoint));
            GIVES(NEMESIA_ERR_FORKED, nemesia_endpoint_close(endpoint));
            _exit(EXIT_SUCCESS);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
        works(endpoint);
        OK(nemesia_endpoint_close(endpoint));
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } CASES[] = {
        {"double-close", double_close},
        {"use-after-close", use_after_close},
        {"destroy-twice", destroy_twice},
        {"wrong-kind", wrong_kind},
        {"foreign", foreign},
        {"close-while-waiting", close_while_waiting},
        {"late-reply", late_reply},
        {"nested-handlers", nested_handlers},
        {"message-twice", message_twice},
        {"forked-child", forked_child},
    };
    size_t at, ran = 0;
    CHECK(argc <= 2 && sem_init(&inside, 0, 0) == 0 && sem_init(&tried, 0, 0) == 0);
    alarm(300);
    /* Without an argument, all cases run. */
    for (at = 0; at < sizeof CASES / sizeof *CASES; at++) {
        if (argc == 2 && strcmp(argv[1], CASES[at].name) != 0) continue;
        CASES[at].run();
        ran++;
    }
    CHECK(ran > 0);
    return EXIT_SUCCESS;
}
