/* A small runtime on Nemesia, with its own launcher and key-value store: ffi/README.md explains it piece by piece.
 *   cc runtime.c $(pkg-config --cflags --libs nemesia) -o runtime && ./runtime 4 */
#define _XOPEN_SOURCE 700
#include <nemesia.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, SECONDS = 120, RING = 1, ALL = 2 };

static void need(int condition, const char *what) {
    if (!condition) { fprintf(stderr, "%s\n", what); exit(EXIT_FAILURE); }
}

static int32_t check(int32_t status) {
    need(status >= 0, nemesia_last_error_message());
    return status;
}

/* 1. The key-value store: the working directory, with a file for each key. A name appears when its value is whole. */
static const char *name_of(const char *key, int rank) {
    static char name[32];
    snprintf(name, sizeof name, "%s.%d", key, rank);
    return name;
}

static void put(const char *key, int rank, const void *value, size_t bytes) {
    char partial[32];
    FILE *file = fopen(strcpy(partial, name_of("partial", rank)), "wb");
    need(file != NULL && fwrite(value, 1, bytes, file) == bytes && fclose(file) == 0, "cannot write to the store");
    need(rename(partial, name_of(key, rank)) == 0, "cannot rename in the store");
}

static void get(const char *key, int rank, void *value, size_t bytes) {
    const struct timespec millisecond = {0, 1000000};
    FILE *file;
    while ((file = fopen(name_of(key, rank), "rb")) == NULL) nanosleep(&millisecond, NULL);
    need(fread(value, 1, bytes, file) == bytes && fclose(file) == 0, "cannot read from the store");
}

/* 2. The world: a table from this runtime's ranks to peers. */
static nemesia_endpoint *endpoint;
static struct { bool is_known; uint64_t peer; } world[MOST];

static uint64_t peer_at(int rank) {
    if (!world[rank].is_known) {
        uint8_t address[NEMESIA_ADDRESS_BYTES];
        get("address", rank, address, sizeof address);
        check(nemesia_endpoint_connect(endpoint, address, &world[rank].peer));
        world[rank].is_known = true;
    }
    return world[rank].peer;
}

/* 3. Requests. The completion of one carries its address. */
static struct request { uint32_t kind; int rank; uint64_t word; } requests[2 * MOST + 2];
static int started, pending, lost;
static uint64_t sum;

static void start(uint32_t kind, int rank, uint64_t tag, uint64_t word, bool from_any) {
    struct request *request = &requests[started++];
    nemesia_operation it = {.struct_size = sizeof it, .kind = kind, .flags = NEMESIA_OPERATION_COMPLETION, .tag = tag,
                            .user_context = (uintptr_t)request, .rank = NEMESIA_ANY_SOURCE,
                            .buffer = &request->word, .len = sizeof request->word};
    int32_t status = NEMESIA_OK;
    *request = (struct request){kind, rank, word};
    if (!from_any) status = nemesia_endpoint_rank_of(endpoint, peer_at(rank), &it.rank);
    if (status == NEMESIA_OK) status = nemesia_endpoint_start(endpoint, &it, NULL);
    if (status == NEMESIA_ERR_ENDED || status == NEMESIA_ERR_PEER_FAILED) lost += kind == NEMESIA_OPERATION_RECEIVE;
    else pending += check(status) == NEMESIA_OK;
}

static void finish(const nemesia_completion *done) {
    const struct request *request = (const struct request *)(uintptr_t)done->user_context;
    uint64_t sender;
    pending--;
    if (request->kind != NEMESIA_OPERATION_RECEIVE) return;
    if (done->code == NEMESIA_ERR_PEER_FAILED) { lost++; return; }
    need(done->code == NEMESIA_OK, nemesia_status_name(done->code));
    check(nemesia_endpoint_peer_of(endpoint, done->rank, &sender));
    need(sender == peer_at(request->rank), "a message of another process");
    sum += request->word;
}

/* 4. Progress: take completions until there are none, then sleep by the descriptor. */
static void complete_all(void) {
    struct pollfd event = {-1, POLLIN, 0};
    check(nemesia_endpoint_event_fd(endpoint, &event.fd));
    while (pending > 0) {
        nemesia_completion done[16];
        size_t count, at;
        check(nemesia_endpoint_completions(endpoint, 16, done, &count));
        for (at = 0; at < count; at++) finish(&done[at]);
        if (count == 0 && check(nemesia_endpoint_arm(endpoint)) == NEMESIA_OK) poll(&event, 1, -1);
    }
}

/* 5. A process: a message to the right; then, after the last rank was killed, a message to each of the others. */
static int run(int rank, int size) {
    uint8_t address[NEMESIA_ADDRESS_BYTES];
    const int left = (rank + size - 1) % size;
    alarm(SECONDS); /* whatever happens, no process stays */
    check(nemesia_endpoint_alone(NULL, &endpoint));
    check(nemesia_endpoint_address(endpoint, address));
    put("address", rank, address, sizeof address);
    start(NEMESIA_OPERATION_RECEIVE, left, RING, 0, true);
    start(NEMESIA_OPERATION_SEND, (rank + 1) % size, RING, 1000 + (uint64_t)rank, false);
    complete_all();
    need(sum == 1000 + (uint64_t)left, "the word of another rank");
    put("met", rank, "", 0);
    while (rank == size - 1) pause();
    sum = 0;
    for (int other = 0; other < size; other++) {
        if (other != rank) start(NEMESIA_OPERATION_RECEIVE, other, ALL, 0, false);
        if (other != rank) start(NEMESIA_OPERATION_SEND, other, ALL, 1 + (uint64_t)rank, false);
    }
    complete_all();
    check(nemesia_endpoint_close(endpoint));
    return printf("rank %d: sum %d, lost %d\n", rank, (int)sum, lost) < 0;
}

/* 6. The launcher: starts the processes, kills the last one, and removes the store. */
int main(int count, char **words) {
    const int size = count > 1 ? atoi(words[1]) : 0;
    char store[] = "runtime-XXXXXX", nothing;
    pid_t pids[MOST] = {0};
    int rank, status, failed = 0;
    need(size > 1 && size <= MOST, "usage: runtime SIZE");
    alarm(SECONDS); /* as above */
    need(mkdtemp(store) != NULL && chdir(store) == 0, "cannot make the store here");
    for (rank = 0; rank < size; rank++) {
        if ((pids[rank] = fork()) == 0) return run(rank, size);
        need(pids[rank] > 0, "cannot start a process");
    }
    for (rank = 0; rank < size; rank++) get("met", rank, &nothing, 0);
    kill(pids[size - 1], SIGKILL);
    for (rank = 0; rank < size; rank++) {
        need(waitpid(pids[rank], &status, 0) == pids[rank], "cannot wait for a process");
        failed |= rank == size - 1 ? !WIFSIGNALED(status) : !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        remove(name_of("address", rank));
        remove(name_of("met", rank));
    }
    return chdir("..") != 0 || rmdir(store) != 0 || failed;
}
