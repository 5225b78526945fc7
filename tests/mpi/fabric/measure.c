/* Measures a provider of libfabric without an MPI: `measure PROVIDER SIZE,SIZE,... NANOSECONDS CORE CORE`.
 *
 * Messages with tags between two processes, a core each. Each line of the output has a test, a size and a value:
 * nanoseconds one way for latency, and messages a second of windows of 64. Values are the 5th percentile of batches,
 * because others use the machine, too. */
#include "sides.h"

#include <sched.h>

enum { BATCHES = 40, NAME = 256, WINDOW = 64 };

static struct side it;
static unsigned char *bytes[2];
static size_t length;

static void open_any(const char *provider) {
    struct fi_info *hints = fi_allocinfo();
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_TAGGED};
    struct fi_av_attr vector = {.type = FI_AV_TABLE};
    unsigned char own[NAME] = {0}, others[NAME];
    size_t named = NAME;
    CHECK(hints != NULL);
    hints->fabric_attr->prov_name = strdup(provider);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    OK(fi_getinfo(API, NULL, NULL, 0, hints, &it.info));
    fi_freeinfo(hints);
    OK(fi_fabric(it.info->fabric_attr, &it.fabric, NULL));
    OK(fi_domain(it.fabric, it.info, &it.domain, NULL));
    OK(fi_av_open(it.domain, &vector, &it.av, NULL));
    OK(fi_cq_open(it.domain, &queue, &it.cq, NULL));
    OK(fi_endpoint(it.domain, it.info, &it.ep, NULL));
    OK(fi_ep_bind(it.ep, &it.av->fid, 0));
    OK(fi_ep_bind(it.ep, &it.cq->fid, FI_SEND | FI_RECV));
    OK(fi_enable(it.ep));
    OK(fi_getname(&it.ep->fid, own, &named));
    exchange(NULL, own, others, NAME);
    RETURNS(fi_av_insert(it.av, others, 1, &it.peer, 0, NULL), 1);
}

static void send_one(void) {
    static struct fi_context2 context;
    ssize_t sent;
    struct fi_cq_tagged_entry entry;
    do {
        sent = fi_tsend(it.ep, bytes[0], length, NULL, it.peer, 1, &context);
    } while (sent == -FI_EAGAIN && (fi_cq_read(it.cq, &entry, 0), 1));
    OK(sent);
}

static void receive_one(void) {
    static struct fi_context2 contexts[WINDOW];
    static int next;
    next = (next + 1) % WINDOW;
    OK(fi_trecv(it.ep, bytes[1], length, NULL, FI_ADDR_UNSPEC, 1, 0, &contexts[next]));
}

/* Waits for completions of sends and receives. */
static void wait_for(int count) {
    struct fi_cq_tagged_entry entries[16];
    while (count > 0) {
        const ssize_t done = fi_cq_read(it.cq, entries, count < 16 ? (size_t)count : 16);
        CHECK(done > 0 || done == -FI_EAGAIN);
        if (done > 0) count -= (int)done;
    }
}

static void round_trip(void) {
    if (rank == 0) send_one();
    receive_one();
    if (rank == 0) {
        wait_for(2);
    } else {
        wait_for(1);
        send_one();
        wait_for(1);
    }
}

/* Sends a window of messages to the other process, which answers it. */
static void window(void) {
    for (int at = 0; at < WINDOW; at++) {
        if (rank == 0) send_one();
        else receive_one();
    }
    wait_for(WINDOW);
    if (rank == 0) receive_one();
    else send_one();
    wait_for(1);
}

static int order(const void *one, const void *two) {
    const double left = *(const double *)one, right = *(const double *)two;
    return (left > right) - (left < right);
}

/* Returns the nanoseconds of one step. */
static double measured(void (*step)(void), double budget) {
    double batches[BATCHES], begun;
    int count;
    for (int at = 0; at < 20; at++) step();
    begun = now();
    for (int at = 0; at < 5; at++) step();
    const double mine = 1e9 * (now() - begun) / 5;
    double theirs;
    exchange(NULL, &mine, &theirs, sizeof mine);
    const double each = rank == 0 ? mine : theirs; /* both must count alike */
    count = (int)(budget / BATCHES / (each + 1));
    count = count < 1 ? 1 : count > 100000 ? 100000 : count;
    for (int batch = 0; batch < BATCHES; batch++) {
        begun = now();
        for (int at = 0; at < count; at++) step();
        batches[batch] = 1e9 * (now() - begun) / count;
    }
    qsort(batches, BATCHES, sizeof *batches, order);
    return batches[BATCHES / 20];
}

int main(int count, char **words) {
    int ends[2];
    cpu_set_t cores;
    CHECK(count == 6 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    rank = child == 0;
    if (rank == 1) prctl(PR_SET_PDEATHSIG, SIGKILL);
    other = ends[rank];
    CPU_ZERO(&cores);
    CPU_SET((size_t)atoi(words[4 + rank]), &cores);
    CHECK(sched_setaffinity(0, sizeof cores, &cores) == 0);
    open_any(words[1]);
    for (char *next = words[2]; *next != 0;) {
        length = (size_t)strtol(next, &next, 10);
        next += *next == ',';
        for (int at = 0; at < 2; at++) CHECK((bytes[at] = calloc(1, length + 1)) != NULL);
        const double both_ways = measured(round_trip, atof(words[3]));
        const double each = measured(window, atof(words[3])) / WINDOW;
        if (rank == 0) printf("latency %zu %.6g\nrate %zu %.6g\n", length, both_ways / 2, length, 1e9 / each);
        free(bytes[0]), free(bytes[1]);
        meet(NULL);
    }
    /* Some providers leave names in shared memory if they are not closed. */
    OK(fi_close(&it.ep->fid));
    OK(fi_close(&it.cq->fid));
    OK(fi_close(&it.av->fid));
    OK(fi_close(&it.domain->fid));
    OK(fi_close(&it.fabric->fid));
    return 0;
}
