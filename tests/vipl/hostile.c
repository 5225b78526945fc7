/* The client of a process that violates the protocol: `hostile ADDRESS COUNT`. Each connection ends in an error, and
 * the next one is made. The memory of the client is unchanged, but for what it lent. */
#include "common.h"

static void spoiled(side *own, const char *host, unsigned number) {
    address local = address_of(own, 2), remote = address_of(own, 1);
    const place nowhere = {NULL, 7};
    int at, left;
    CHECK(inet_pton(AF_INET, host, remote.bytes + 4) == 1);
    for (at = 0; at < 4; at++) post_receive(own, (unsigned)at * 64, 64);
    memset(data_at(own, 4096), (int)number, 256);
    OK(VipConnectRequest(own->vi, &local.net, &remote.net, LIMIT, NULL));
    /* A send, a write and a read, which nobody answers. */
    post_send(own, 4096, 64);
    OK(VipPostSend(own->vi, describe_rdma(own, VIP_CONTROL_OP_RDMAWRITE, nowhere, 4096, 64), own->handle));
    OK(VipPostSend(own->vi, describe_rdma(own, VIP_CONTROL_OP_RDMAREAD, nowhere, 4096, 64), own->handle));
    await_state(own, VIP_STATE_ERROR);
    OK(VipDisconnect(own->vi));
    drain(own);
    for (left = 0; left < 256; left++) CHECK(((unsigned char *)data_at(own, 4096))[left] == (unsigned char)number);
}

int main(int count, char **arguments) {
    side own;
    int at;
    CHECK(count == 3);
    memset(&own, 0, sizeof own);
    current = "hostile";
    alarm(300);
    open_side(&own, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    for (at = 0; at < atoi(arguments[2]); at++) {
        own.next = 0;
        spoiled(&own, arguments[1], (unsigned)at);
    }
    close_side(&own);
    return 0;
}
