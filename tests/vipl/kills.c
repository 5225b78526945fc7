/* Two processes, of which one is killed at a random time: the other one always comes to an end, with an error.
 * `kills ROUNDS SEED`. */
#include "common.h"

#include <errno.h>

static unsigned seed = 1;

static unsigned random_number(unsigned below) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % below;
}

/* Connects and transfers until the other process is gone. */
static void live(side *own) {
    address local, remote;
    VIP_DESCRIPTOR *found;
    VIP_RETURN code;
    unsigned at;
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY << random_number(2), 1);
    /* The other process, or nothing: the connection may fail in every way. */
    local = address_of(own, own->is_server ? 1 : 2), remote = address_of(own, own->is_server ? 2 : 1);
    for (at = 0; at < 32; at++) post_receive(own, at * 1024, 1024);
    if (own->is_server) {
        VIP_CONN_HANDLE connection;
        code = VipConnectWait(own->nic, &local.net, 700, NULL, NULL, &connection);
        if (code == VIP_SUCCESS) code = VipConnectAccept(connection, own->vi);
    } else {
        code = VipConnectRequest(own->vi, &local.net, &remote.net, 700, NULL);
    }
    if (code != VIP_SUCCESS) {
        CHECK(code == VIP_TIMEOUT || code == VIP_NOT_REACHABLE);
        _exit(0);
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
    _exit(0);
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 20, round, number;
    seed = count > 2 ? (unsigned)atoi(arguments[2]) : (unsigned)getpid();
    printf("%d kills, seed %u\n", rounds, seed);
    fflush(stdout);
    current = "kills";
    for (round = 0; round < rounds; round++) {
        pid_t pids[2];
        int status, victim = (int)random_number(2);
        unsigned level = seed;
        test_number = (unsigned long)getpid() << 32 | (unsigned long)round;
        for (number = 0; number < 2; number++) {
            pids[number] = fork();
            CHECK(pids[number] >= 0);
            if (pids[number] == 0) {
                side own;
                memset(&own, 0, sizeof own);
                own.is_server = number == 0;
                own.is_allocated = round % 2;
                seed = level;
                alarm(300);
                CHECK(enter_host(own.is_server));
                live(&own);
            }
        }
        usleep(random_number(30000));
        CHECK(kill(pids[victim], SIGKILL) == 0 || errno == ESRCH);
        for (number = 0; number < 2; number++) {
            CHECK(waitpid(pids[number], &status, 0) == pids[number]);
            if (number == victim && WIFSIGNALED(status)) continue;
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
    }
    return 0;
}
