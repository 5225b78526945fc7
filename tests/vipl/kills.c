/* Two processes, of which one is killed at a random time: the other one always comes to an end, with an error, and
 * keeps nothing. `kills ROUNDS SEED`.
 *
 * In every second round both processes are new. In the others one process is the survivor of all rounds: after each
 * round it must have as many descriptors, threads and mapped segments as after its first one. In that one both
 * processes are connected before the other one kills itself, so that the survivor has opened everything that a process
 * keeps: it listens, and has its threads and the memory port for other machines. */
#include "common.h"

#include <dirent.h>
#include <errno.h>

static unsigned seed = 1;

static unsigned random_number(unsigned below) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % below;
}

/* Connects and transfers until the other process is gone. In the first round both are connected in any case. */
static void live(side *own, int is_first) {
    address local, remote;
    VIP_DESCRIPTOR *found;
    VIP_RETURN code;
    VIP_ULONG limit = is_first ? LIMIT : 700;
    unsigned at;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY << random_number(2), 1);
    /* The other process, or nothing: the connection may fail in every way. */
    local = address_of(own, own->is_server ? 1 : 2), remote = address_of(own, own->is_server ? 2 : 1);
    for (at = 0; at < 32; at++) post_receive(own, at * 1024, 1024);
    if (own->is_server) {
        VIP_CONN_HANDLE connection;
        code = VipConnectWait(own->nic, &local.net, limit, NULL, NULL, &connection);
        if (code == VIP_SUCCESS) code = VipConnectAccept(connection, own->vi);
    } else {
        code = VipConnectRequest(own->vi, &local.net, &remote.net, limit, NULL);
    }
    CHECK(code == VIP_SUCCESS || (!is_first && (code == VIP_TIMEOUT || code == VIP_NOT_REACHABLE)));
    if (code == VIP_SUCCESS) check_transport(own->vi);
    /* The client of the first round: the server has accepted when a message arrives. */
    if (is_first && !own->is_server) {
        OK(VipRecvWait(own->vi, LIMIT, &found));
        CHECK(kill(getpid(), SIGKILL) == 0);
    }
    while (state_of(own) == VIP_STATE_CONNECTED) {
        own->next = 100;
        post_send(own, 100000, random_number(1024));
        code = VipSendWait(own->vi, LIMIT, &found);
        CHECK((code == VIP_SUCCESS || code == VIP_DESCRIPTOR_ERROR) && found != NULL);
        while ((code = VipRecvWait(own->vi, LIMIT, &found)) == VIP_SUCCESS && found != NULL) {
            OK(VipPostRecv(own->vi, found, own->handle));
            if (random_number(4) == 0) break;
        }
        CHECK(code == VIP_SUCCESS || code == VIP_DESCRIPTOR_ERROR);
    }
    close_side(own);
}

/* What both sides of a round must know. */
typedef struct {
    unsigned long number;
    unsigned seed;
    int is_server, is_allocated, is_first;
} kill_round;

static side begin(const kill_round *round, int is_server) {
    side own;
    memset(&own, 0, sizeof own);
    own.is_server = is_server;
    own.is_allocated = round->is_allocated;
    seed = round->seed;
    test_number = round->number;
    return own;
}

static pid_t start(const kill_round *round, int is_server) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        side own = begin(round, is_server);
        alarm(300);
        CHECK(enter_host(is_server));
        live(&own, round->is_first);
        _exit(0);
    }
    return pid;
}

static void ends_well(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void killed(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

static void kill_soon(pid_t pid) {
    usleep(random_number(30000));
    CHECK(kill(pid, SIGKILL) == 0 || errno == ESRCH);
    killed(pid);
}

/* Both processes are new, and one of them is killed. */
static void new_processes(const kill_round *round) {
    int victim = (int)random_number(2);
    unsigned next = seed;
    pid_t pids[2] = {start(round, 1), start(round, 0)};
    seed = next;
    kill_soon(pids[victim]);
    ends_well(pids[!victim]);
}

/* What a process has. */
typedef struct {
    int descriptors, threads, segments;
} holdings;

static int entries(const char *path) {
    int count = 0;
    struct dirent *entry;
    DIR *directory = opendir(path);
    CHECK(directory != NULL);
    while ((entry = readdir(directory)) != NULL) count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static holdings look(void) {
    holdings found = {entries("/proc/self/fd"), entries("/proc/self/task"), 0};
    char line[4600];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) found.segments += strstr(line, "memfd:") != NULL;
    fclose(maps);
    return found;
}

/* Waits until nothing of a round is left: connections that were not accepted end a little later. */
static void settle(const holdings *first) {
    int left = LIMIT;
    holdings now;
    do {
        now = look();
        if (now.descriptors <= first->descriptors && now.threads <= first->threads && now.segments <= first->segments)
            return;
        usleep(1000);
    } while (left-- > 0);
    fprintf(stderr, "left: descriptors %d of %d, threads %d of %d, segments %d of %d\n", now.descriptors,
            first->descriptors, now.threads, first->threads, now.segments, first->segments);
    CHECK(!"everything of a round is released");
}

/* Looks when nothing has ended for a while: the first round leaves nothing that ends later. */
static holdings look_twice(void) {
    holdings now = look(), before;
    do {
        before = now;
        usleep(300000);
        now = look();
    } while (memcmp(&now, &before, sizeof now) != 0);
    return now;
}

/* The process that survives all rounds: reads each round from a pipe, and answers when nothing of it is left. */
static void survive(int rounds, int answers) {
    kill_round round;
    holdings first = {0, 0, 0};
    int count;
    for (count = 0; read(rounds, &round, sizeof round) == (ssize_t)sizeof round; count++) {
        side own = begin(&round, round.is_server);
        alarm(300);
        live(&own, round.is_first);
        if (count == 0) first = look_twice();
        settle(&first);
        CHECK(write(answers, "d", 1) == 1);
    }
    printf("survivor of %d kills: %d descriptors, %d threads, %d segments\n", count, first.descriptors, first.threads,
           first.segments);
    fflush(stdout);
    _exit(0);
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 20, number, to_survivor[2], from_survivor[2];
    pid_t survivor;
    seed = count > 2 ? (unsigned)atoi(arguments[2]) : (unsigned)getpid();
    printf("%d kills, seed %u\n", rounds, seed);
    fflush(stdout);
    current = "kills";
    CHECK(pipe(to_survivor) == 0 && pipe(from_survivor) == 0);
    survivor = fork();
    CHECK(survivor >= 0);
    if (survivor == 0) {
        close(to_survivor[1]), close(from_survivor[0]);
        CHECK(enter_host(1));
        survive(to_survivor[0], from_survivor[1]);
    }
    close(to_survivor[0]), close(from_survivor[1]);
    for (number = 0; number < rounds; number++) {
        kill_round round;
        char done;
        memset(&round, 0, sizeof round);
        round.number = (unsigned long)getpid() << 32 | (unsigned long)number;
        round.seed = seed;
        round.is_allocated = number / 2 % 2;
        if (number % 2) {
            new_processes(&round);
        } else {
            pid_t victim;
            /* The survivor listens in its first round, and always if the processes have hosts of their own. */
            round.is_first = number == 0;
            round.is_server = number == 0 || has_hosts() || random_number(2);
            CHECK(write(to_survivor[1], &round, sizeof round) == (ssize_t)sizeof round);
            victim = start(&round, !round.is_server);
            if (round.is_first) killed(victim);
            else kill_soon(victim);
            CHECK(read(from_survivor[0], &done, 1) == 1);
        }
    }
    close(to_survivor[1]);
    ends_well(survivor);
    return 0;
}
