/* Peers that come, go and die: fabtests' groups rdm_multi_client, multinode and av_xfer. It has none for deaths. */
#include "sides.h"

enum { CHILDREN = 6, LONG = 1 << 20, KEY = 77 };

static const struct options OPTIONS = {.caps = FI_TAGGED | FI_RMA | FI_SOURCE | FI_DIRECTED_RECV};

/* A process that waits until it may open its endpoint. */
struct child {
    pid_t process;
    int socket;
};

/* Makes the processes, before this one calls libfabric. */
static void make(struct child *all, int count, void (*live)(int)) {
    for (int at = 0; at < count; at++) {
        int ends[2];
        char byte;
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        all[at].process = fork();
        CHECK(all[at].process >= 0);
        if (all[at].process == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            rank = at + 1;
            for (int before = 0; before < at; before++) close(all[before].socket);
            close(ends[0]);
            other = ends[1];
            if (recv(other, &byte, 1, 0) != 1) _exit(0);
            live(at);
            _exit(0);
        }
        close(ends[1]);
        all[at].socket = ends[0];
    }
}

/* Waits for the end of a process: that it ended by itself, or was killed. */
static void ended(const struct child *it, int is_killed) {
    int status;
    CHECK(waitpid(it->process, &status, 0) == it->process);
    CHECK(is_killed ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(it->socket);
}

static void open_alone(struct side *it) {
    memset(it, 0, sizeof *it);
    open_domain(it, &OPTIONS);
    open_endpoint(it, &OPTIONS);
}

/* Exchanges addresses with the process at the other end of the socket. */
static void introduce(struct side *it) {
    exchange(it, it->own, it->others, ADDRESS);
    RETURNS(fi_av_insert(it->av, it->others, 1, &it->peer, 0, NULL), 1);
}

/* A number to the peer, and back with one more. */
static void call(struct side *it) {
    int out = rank, in = -1;
    if (rank == 0) {
        OK(fi_trecv(it->ep, &in, sizeof in, NULL, it->peer, 1, 0, &in));
        POSTED(it, fi_tinject(it->ep, &out, sizeof out, it->peer, 0));
        completed(it, &in);
        CHECK(in == out + 1);
    } else {
        OK(fi_trecv(it->ep, &in, sizeof in, NULL, FI_ADDR_UNSPEC, 0, 0, &in));
        completed(it, &in);
        out = in + 1;
        POSTED(it, fi_tinject(it->ep, &out, sizeof out, it->peer, 1));
    }
}

static void visitor(int at) {
    struct side it;
    (void)at;
    open_alone(&it);
    introduce(&it);
    call(&it);
    meet(&it);
    close_side(&it);
}

/* One endpoint serves one process after the other. */
static void visitors(void) {
    struct child all[CHILDREN];
    struct side it;
    char byte = 'v';
    make(all, CHILDREN, visitor);
    open_alone(&it);
    for (int at = 0; at < CHILDREN; at++) {
        other = all[at].socket;
        CHECK(send(other, &byte, 1, MSG_NOSIGNAL) == 1);
        introduce(&it);
        call(&it);
        meet(&it);
        ended(&all[at], 0);
        if (at % 2) OK(fi_av_remove(it.av, &it.peer, 1, 0));
    }
    close_side(&it);
}

static unsigned char bytes[LONG];

static void victim(int at) {
    struct side it;
    struct fid_mr *region;
    int value = at;
    open_alone(&it);
    introduce(&it);
    OK(fi_mr_reg(it.domain, bytes, LONG, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &region, NULL));
    call(&it);
    if (at % 2) POSTED(&it, fi_tinject(it.ep, &value, sizeof value, it.peer, 98));
    meet(&it);
    if (at % 2 == 0) {
        /* From here on this process makes no progress: nothing is received, and nothing is answered. */
        char last = 'q';
        CHECK(send(other, &last, 1, MSG_NOSIGNAL) == 1);
        CHECK(recv(other, &last, 1, 0) == 1);
        raise(SIGKILL);
    }
    meet(&it);
    OK(fi_close(&region->fid));
    close_side(&it);
}

/* Returns a call's error, now or in its completion. */
static int error_of(struct side *it, ssize_t posted, const void *context) {
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    if (posted < 0) return (int)-posted;
    if (next_from(it, &entry, NULL) == 1) {
        CHECK(entry.op_context == context);
        return 0;
    }
    RETURNS(fi_cq_readerr(it->cq, &error, 0), 1);
    CHECK(error.op_context == context);
    return error.err;
}

/* A process is killed: what needs it fails, each operation once, and all else goes on. */
static void killed(void) {
    struct child all[CHILDREN];
    struct side it;
    char byte = 'k';
    int from_any = -1, failures;
    make(all, CHILDREN, victim);
    open_alone(&it);
    for (int at = 0; at < CHILDREN; at++) {
        other = all[at].socket;
        CHECK(send(other, &byte, 1, MSG_NOSIGNAL) == 1);
        introduce(&it);
        call(&it);
        if (at % 2) {
            /* The receive from any process has outlived the one that died, and takes the message of this one. */
            completed(&it, &from_any);
            CHECK(from_any == at);
            meet(&it);
            meet(&it);
            ended(&all[at], 0);
            continue;
        }
        meet(&it);
        char place[2][8], quiet;
        CHECK(recv(other, &quiet, 1, 0) == 1);
        OK(fi_trecv(it.ep, &from_any, sizeof from_any, NULL, FI_ADDR_UNSPEC, 98, 0, &from_any));
        OK(fi_trecv(it.ep, place[0], 8, NULL, it.peer, 99, 0, place[0]));
        POSTED(&it, fi_tsend(it.ep, bytes, LONG, NULL, it.peer, 97, bytes));
        POSTED(&it, fi_read(it.ep, place[1], 8, NULL, it.peer, 0, KEY, place[1]));
        CHECK(send(other, &byte, 1, MSG_NOSIGNAL) == 1);
        for (failures = 0; failures < 3; failures++) {
            struct fi_cq_tagged_entry entry;
            struct fi_cq_err_entry error = {0};
            RETURNS(next_from(&it, &entry, NULL), -FI_EAVAIL);
            RETURNS(fi_cq_readerr(it.cq, &error, 0), 1);
            RETURNS(error.err, FI_ECONNABORTED);
            CHECK(strstr(fi_cq_strerror(it.cq, error.prov_errno, NULL, NULL, 0), "is gone: ") != NULL);
            CHECK(error.op_context == place[0] || error.op_context == place[1] || error.op_context == bytes);
        }
        ended(&all[at], 1);
        /* Later operations fail, too. */
        CHECK(error_of(&it, fi_tsend(it.ep, place[0], 8, NULL, it.peer, 97, place[0]), place[0]) == FI_ECONNABORTED);
        CHECK(error_of(&it, fi_read(it.ep, place[0], 8, NULL, it.peer, 0, KEY, place[0]), place[0]) == FI_ECONNABORTED);
    }
    close_side(&it);
}

static const struct test TESTS[] = {{"visitors", visitors, 1}, {"killed", killed, 1}};

int main(int count, char **words) { return run_test(count, words, TESTS, sizeof TESTS / sizeof *TESTS); }
