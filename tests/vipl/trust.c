/* Whether processes of two machines are connected: `trust SERVER_KEY CLIENT_KEY TRUST CODE`.
 *
 * The keys are files for NEMESIA_JOB_KEY_FILE, or "-"; TRUST is the value of VIPL_TRUST, or "-". CODE is the return
 * code of the client's request. */
#include "common.h"

#include <poll.h>

static char **words;

static void set(const char *name, const char *value) {
    if (strcmp(value, "-") == 0) CHECK(unsetenv(name) == 0);
    else CHECK(setenv(name, value, 1) == 0);
}

static void connect_or_not(side *own) {
    int expected = atoi(words[4]);
    address local, remote;
    set("NEMESIA_JOB_KEY_FILE", own->is_server ? words[1] : words[2]);
    set("VIPL_TRUST", words[3]);
    open_side(own, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    if (expected == VIP_SUCCESS) {
        VIP_DESCRIPTOR *receive = post_receive(own, 0, 64);
        connect_side(own);
        sent(own, post_send(own, 1000, 64), VIP_STATUS_OP_SEND, 64);
        received(own, receive, VIP_STATUS_OP_RECEIVE, 64);
        meet(own, 'c');
    } else if (own->is_server) {
        /* The program does not learn of a request that is refused. */
        struct pollfd client;
        VIP_CONN_HANDLE connection;
        client.fd = own->in;
        client.events = POLLIN;
        local = address_of(own, 1);
        do {
            GIVES(VIP_TIMEOUT, VipConnectWait(own->nic, &local.net, 200, NULL, NULL, &connection));
        } while (poll(&client, 1, 0) == 0);
        meet(own, 'r');
    } else {
        local = address_of(own, 2), remote = address_of(own, 1);
        CHECK((int)VipConnectRequest(own->vi, &local.net, &remote.net, LIMIT, NULL) == expected);
        CHECK(state_of(own) == VIP_STATE_IDLE);
        meet(own, 'r');
    }
    close_side(own);
}

int main(int count, char **arguments) {
    CHECK(count == 5);
    words = arguments;
    two_processes("trust", 0, connect_or_not);
    return 0;
}
