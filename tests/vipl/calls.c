/* Each function and each return code that one process alone can see. */
#include "common.h"

#include <sys/resource.h>

static void nothing(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor) {
    (void)context, (void)nic, (void)vi, (void)descriptor;
}

static void no_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN is_receive) {
    (void)context, (void)nic, (void)vi, (void)is_receive;
}

/* "LP64 sizes and offsets were measured on real clients' expectations."
 * statement: descriptor-layout, control-segment */
static void sizes(side *own) {
    VIP_DESCRIPTOR *none = NULL;
    (void)own;
    CHECK(sizeof(VIP_DESCRIPTOR) == 64 && sizeof(VIP_CONTROL_SEGMENT) == 32);
    CHECK(sizeof(VIP_ADDRESS_SEGMENT) == 16 && sizeof(VIP_DATA_SEGMENT) == 16 && sizeof(none->DS[0]) == 16);
    CHECK((size_t)&none->CS.NextHandle == 8 && (size_t)&none->CS.SegCount == 12 && (size_t)&none->CS.Control == 14);
    CHECK((size_t)&none->CS.Reserved == 16 && (size_t)&none->CS.ImmediateData == 20);
    CHECK((size_t)&none->CS.Length == 24 && (size_t)&none->CS.Status == 28);
    CHECK(sizeof(VIP_VI_ATTRIBUTES) == 40 && sizeof(VIP_MEM_ATTRIBUTES) == 16);
    CHECK(sizeof(VIP_NIC_ATTRIBUTES) == 200 && sizeof(VIP_ERROR_DESCRIPTOR) == 48);
    CHECK(sizeof(VIP_BOOLEAN) == 4 && sizeof(VIP_ULONG) == 8 && sizeof(VIP_MEM_HANDLE) == 4);
    CHECK(sizeof(VIP_PVOID64) == 8 && sizeof(VIP_QOS) == 8 && sizeof(VIP_RELIABILITY_LEVEL) == 2);
    CHECK(VIP_NOT_DONE == 1 && VIP_NO_MATCH == 14 && VIP_NOT_REACHABLE == 15 && VIP_ERROR_NOT_SUPPORTED == 16);
}

/* statement: reliability-compare, autodiscovery, nic-attributes, net-address */
static void nics(side *own) {
    VIP_NIC_ATTRIBUTES nic;
    VIP_NIC_HANDLE other;
    VIP_AUTODISCOVERY_LIST list;
    address found;
    GIVES(VIP_INVALID_PARAMETER, VipOpenNic(NULL, &other));
    GIVES(VIP_INVALID_PARAMETER, VipOpenNic("", &other));
    GIVES(VIP_INVALID_PARAMETER, VipOpenNic("nic0", NULL));
    GIVES(VIP_INVALID_PARAMETER, VipOpenNic("nic1", &other));
    OK(VipOpenNic("/dev/via_eth0", &other));
    CHECK(other != own->nic);
    OK(VipQueryNic(other, &nic));
    CHECK(strcmp(nic.Name, "/dev/via_eth0") == 0 && nic.ThreadSafe == VIP_TRUE);
    CHECK(nic.NicAddressLen == 4 && nic.MaxDiscriminatorLen >= 12);
    /* "Compare ReliabilityLevelSupport with >=." */
    CHECK(nic.ReliabilityLevelSupport >= VIP_SERVICE_RELIABLE_RECEPTION);
    CHECK(nic.RDMAReadSupport == (VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION));
    CHECK(nic.MaxRegisterBytes > 0 && nic.MaxRegisterRegions > 0 && nic.MaxRegisterBlockBytes > 0 && nic.MaxVI > 0);
    CHECK(nic.MaxDescriptorsPerQueue > 0 && nic.MaxSegmentsPerDesc > 2 && nic.MaxCQ > 0 && nic.MaxCQEntries > 0);
    CHECK(nic.MaxTransferSize > 0 && nic.NativeMTU > 0 && nic.MaxPtags > 0);
    GIVES(VIP_INVALID_PARAMETER, VipQueryNic(other, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipQueryNic(own->vi, &nic));
    list.ADAddrArray = &found.net;
    list.NumAdAddrs = 1;
    OK(VipQuerySystemManagementInfo(other, VIP_SMI_AUTODISCOVERY, &list));
    CHECK(list.NumberOfHops == 1 && list.NumAdAddrs == 1 && found.net.HostAddressLen == 4);
    CHECK(memcmp(found.bytes + 4, nic.LocalNicAddress, 4) == 0);
    GIVES(VIP_INVALID_PARAMETER, VipQuerySystemManagementInfo(other, 2, &list));
    GIVES(VIP_INVALID_PARAMETER, VipQuerySystemManagementInfo(other, VIP_SMI_AUTODISCOVERY, NULL));
    OK(VipErrorCallback(other, NULL, NULL));
    OK(VipCloseNic(other));
    GIVES(VIP_INVALID_PARAMETER, VipCloseNic(other));
    GIVES(VIP_INVALID_PARAMETER, VipQueryNic(other, &nic));
    GIVES(VIP_INVALID_PARAMETER, VipErrorCallback(other, NULL, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipQuerySystemManagementInfo(other, VIP_SMI_AUTODISCOVERY, &list));
}

static void ptags(side *own) {
    VIP_PROTECTION_HANDLE ptag;
    GIVES(VIP_INVALID_PARAMETER, VipCreatePtag(own->nic, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipCreatePtag(own->ptag, &ptag));
    GIVES(VIP_ERROR_RESOURCE, VipDestroyPtag(own->nic, own->ptag));
    OK(VipCreatePtag(own->nic, &ptag));
    OK(VipDestroyPtag(own->nic, ptag));
    GIVES(VIP_INVALID_PARAMETER, VipDestroyPtag(own->nic, ptag));
    GIVES(VIP_INVALID_PARAMETER, VipDestroyPtag(own->nic, NULL));
}

static void memory(side *own) {
    static char bytes[10000];
    VIP_MEM_ATTRIBUTES attributes, found;
    VIP_MEM_HANDLE handle, again;
    VIP_MEM_KIND kind;
    VIP_PVOID allocated;
    memset(&attributes, 0, sizeof attributes);
    attributes.Ptag = own->ptag;
    attributes.EnableRdmaRead = 1;
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(own->nic, NULL, 10, &attributes, &handle));
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(own->nic, bytes, 0, &attributes, &handle));
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(own->nic, bytes, 10, NULL, &handle));
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(own->nic, bytes, 10, &attributes, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(NULL, bytes, 10, &attributes, &handle));
    attributes.Ptag = own->nic;
    GIVES(VIP_INVALID_PTAG, VipRegisterMem(own->nic, bytes, 10, &attributes, &handle));
    GIVES(VIP_INVALID_PTAG, VipAllocRegisterMem(own->nic, &allocated, 10, &attributes, &handle));
    attributes.Ptag = own->ptag;
    OK(VipRegisterMem(own->nic, bytes + 1, 5000, &attributes, &handle));
    OK(VipRegisterMem(own->nic, bytes + 1, 5000, &attributes, &again));
    CHECK(handle != again && handle != 0);
    OK(VipQueryMem(own->nic, bytes + 1, handle, &found));
    CHECK(found.Ptag == own->ptag && found.EnableRdmaRead == 1 && found.EnableRdmaWrite == 0);
    GIVES(VIP_INVALID_PARAMETER, VipQueryMem(own->nic, bytes, handle, &found));
    GIVES(VIP_INVALID_PARAMETER, VipQueryMem(own->nic, bytes + 1, handle, NULL));
    attributes.EnableRdmaWrite = 7;
    OK(VipSetMemAttributes(own->nic, bytes + 1, handle, &attributes));
    OK(VipQueryMem(own->nic, bytes + 1, handle, &found));
    CHECK(found.EnableRdmaWrite == 1);
    GIVES(VIP_INVALID_PARAMETER, VipSetMemAttributes(own->nic, bytes + 1, handle, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipSetMemAttributes(own->nic, bytes, handle, &attributes));
    attributes.Ptag = NULL;
    GIVES(VIP_INVALID_PTAG, VipSetMemAttributes(own->nic, bytes + 1, handle, &attributes));
    attributes.Ptag = own->ptag;
    OK(VipQueryMemKind(own->nic, bytes + 1, handle, &kind));
    CHECK(kind == VIP_MEM_SHADOW_READ);
    OK(VipSetMemReadable(own->nic, bytes + 1, handle, VIP_FALSE));
    OK(VipQueryMemKind(own->nic, bytes + 1, handle, &kind));
    CHECK(kind == VIP_MEM_SHADOW);
    GIVES(VIP_INVALID_PARAMETER, VipFreeRegisteredMem(own->nic, bytes + 1, handle));
    OK(VipDeregisterMem(own->nic, bytes + 1, handle));
    GIVES(VIP_INVALID_PARAMETER, VipDeregisterMem(own->nic, bytes + 1, handle));
    OK(VipDeregisterMem(own->nic, bytes + 1, again));
    GIVES(VIP_INVALID_PARAMETER, VipAllocRegisterMem(own->nic, NULL, 10, &attributes, &handle));
    GIVES(VIP_INVALID_PARAMETER, VipAllocRegisterMem(own->nic, &allocated, 0, &attributes, &handle));
    OK(VipAllocRegisterMem(own->nic, &allocated, 10, &attributes, &handle));
    OK(VipQueryMemKind(own->nic, allocated, handle, &kind));
    CHECK(kind == VIP_MEM_ALLOCATED && ((char *)allocated)[9] == 0);
    GIVES(VIP_INVALID_PARAMETER, VipSetMemReadable(own->nic, allocated, handle, VIP_TRUE));
    GIVES(VIP_INVALID_PARAMETER, VipQueryMemKind(own->nic, allocated, handle ^ 1, &kind));
    GIVES(VIP_INVALID_PARAMETER, VipQueryMemKind(own->nic, allocated, handle, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipDeregisterMem(own->nic, allocated, handle));
    OK(VipFreeRegisteredMem(own->nic, allocated, handle));
    /* More than there is memory. */
    GIVES(VIP_ERROR_RESOURCE, VipAllocRegisterMem(own->nic, &allocated, 1UL << 40, &attributes, &handle));
    GIVES(VIP_ERROR_RESOURCE, VipRegisterMem(own->nic, bytes, 1UL << 40, &attributes, &handle));
}

/* A region has a descriptor of the process, so there can be no more of them than that. Those that are registered stay,
 * and the place of one that goes is free again. */
static void regions(side *own) {
    enum { DESCRIPTORS = 200 };
    static char bytes[64];
    VIP_MEM_ATTRIBUTES attributes = {0}, found;
    VIP_MEM_HANDLE handles[DESCRIPTORS], handle;
    VIP_PVOID allocated;
    VIP_RETURN code;
    struct rlimit limit, lower;
    int round, count;
    attributes.Ptag = own->ptag;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    lower = limit;
    lower.rlim_cur = DESCRIPTORS;
    CHECK(setrlimit(RLIMIT_NOFILE, &lower) == 0);
    for (round = 0; round < 3; round++) {
        for (count = 0; count < DESCRIPTORS; count++) {
            code = VipRegisterMem(own->nic, bytes, sizeof bytes, &attributes, &handles[count]);
            if (code != VIP_SUCCESS) break;
        }
        CHECK(code == VIP_ERROR_RESOURCE && count > DESCRIPTORS / 2);
        GIVES(VIP_ERROR_RESOURCE, VipAllocRegisterMem(own->nic, &allocated, 64, &attributes, &handle));
        OK(VipQueryMem(own->nic, bytes, handles[count - 1], &found));
        OK(VipDeregisterMem(own->nic, bytes, handles[--count]));
        OK(VipAllocRegisterMem(own->nic, &allocated, 64, &attributes, &handle));
        OK(VipFreeRegisteredMem(own->nic, allocated, handle));
        while (count > 0) OK(VipDeregisterMem(own->nic, bytes, handles[--count]));
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* The transport of connected VIs is checked in every program.
 * statement: recv-done-error, recv-done-not-done, vi-states, user-data, transport */
static void vis(side *own) {
    VIP_VI_ATTRIBUTES attributes = own->attributes, found;
    VIP_VI_HANDLE vi;
    VIP_VI_STATE state;
    VIP_BOOLEAN send_empty, receive_empty;
    VIP_DESCRIPTOR *descriptor;
    VIP_VI_TRANSPORT transport;
    char text[4] = "????";
    GIVES(VIP_INVALID_PARAMETER, VipCreateVi(own->nic, NULL, NULL, NULL, &vi));
    GIVES(VIP_INVALID_PARAMETER, VipCreateVi(own->nic, &attributes, NULL, NULL, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipCreateVi(own->ptag, &attributes, NULL, NULL, &vi));
    GIVES(VIP_INVALID_PARAMETER, VipCreateVi(own->nic, &attributes, own->vi, NULL, &vi));
    OK(VipQueryViTransport(own->vi, &transport, NULL, 100));
    CHECK(transport == VIP_TRANSPORT_NONE);
    OK(VipQueryViTransport(own->vi, &transport, text, 0));
    CHECK(text[0] == '?');
    OK(VipQueryViTransport(own->vi, &transport, text, 3));
    CHECK(memcmp(text, "no\0?", 4) == 0);
    GIVES(VIP_INVALID_PARAMETER, VipQueryViTransport(own->vi, NULL, text, 3));
    GIVES(VIP_INVALID_PARAMETER, VipQueryViTransport(own->nic, &transport, text, 3));
    attributes.ReliabilityLevel = 3;
    GIVES(VIP_INVALID_RELIABILITY_LEVEL, VipCreateVi(own->nic, &attributes, NULL, NULL, &vi));
    GIVES(VIP_INVALID_RELIABILITY_LEVEL, VipSetViAttributes(own->vi, &attributes));
    attributes = own->attributes;
    attributes.MaxTransferSize = 0;
    GIVES(VIP_INVALID_MTU, VipCreateVi(own->nic, &attributes, NULL, NULL, &vi));
    attributes = own->attributes;
    attributes.Ptag = own->vi;
    GIVES(VIP_INVALID_PTAG, VipCreateVi(own->nic, &attributes, NULL, NULL, &vi));
    GIVES(VIP_INVALID_PTAG, VipSetViAttributes(own->vi, &attributes));
    attributes = own->attributes;
    attributes.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
    attributes.EnableRdmaRead = 1;
    GIVES(VIP_INVALID_RDMAREAD, VipCreateVi(own->nic, &attributes, NULL, NULL, &vi));
    GIVES(VIP_INVALID_RDMAREAD, VipSetViAttributes(own->vi, &attributes));
    attributes = own->attributes;
    attributes.MaxTransferSize = (VIP_ULONG)1 << 40;
    GIVES(VIP_INVALID_MTU, VipCreateVi(own->nic, &attributes, NULL, NULL, &vi));
    GIVES(VIP_INVALID_MTU, VipSetViAttributes(own->vi, &attributes));
    attributes = own->attributes;
    attributes.QoS = (VIP_QOS)5;
    OK(VipCreateVi(own->nic, &attributes, NULL, NULL, &vi));
    OK(VipQueryVi(vi, &state, &found, &send_empty, &receive_empty));
    CHECK(state == VIP_STATE_IDLE && send_empty && receive_empty && memcmp(&found, &attributes, 2) == 0);
    CHECK(found.MaxTransferSize == MOST_TRANSFER && found.QoS == (VIP_QOS)5 && found.Ptag == own->ptag);
    OK(VipQueryVi(vi, NULL, NULL, NULL, NULL));
    OK(VipDestroyVi(vi));
    GIVES(VIP_INVALID_PARAMETER, VipDestroyVi(vi));
    GIVES(VIP_INVALID_PARAMETER, VipQueryVi(vi, &state, &found, &send_empty, &receive_empty));
    GIVES(VIP_INVALID_PARAMETER, VipSetViAttributes(vi, &attributes));
    GIVES(VIP_INVALID_PARAMETER, VipDisconnect(vi));
    post_receive(own, 0, 4);
    OK(VipQueryVi(own->vi, NULL, NULL, &send_empty, &receive_empty));
    CHECK(send_empty && !receive_empty);
    GIVES(VIP_ERROR_RESOURCE, VipDestroyVi(own->vi));
    GIVES(VIP_NOT_DONE, VipRecvDone(own->vi, &descriptor));
    CHECK(descriptor == NULL);
    OK(VipDisconnect(own->vi));
    GIVES(VIP_DESCRIPTOR_ERROR, VipRecvDone(own->vi, &descriptor));
    CHECK(descriptor != NULL && descriptor->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR);
    CHECK(VipGetUserData(own->vi) == NULL);
    VipSetUserData(own->vi, &state);
    CHECK(VipGetUserData(own->vi) == &state && VipGetUserData(vi) == NULL);
}

/* statement: recv-done-empty, recv-done-not-done */
static void descriptors(side *own) {
    VIP_DESCRIPTOR *found, *made = describe(own, 0, 4);
    VIP_NIC_ATTRIBUTES nic;
    VIP_BOOLEAN deferred;
    VIP_ULONG at;
    /* "Empty queue is DESCRIPTOR_ERROR with a NULL pointer." */
    VIP_RETURN (*dones[])(VIP_VI_HANDLE, VIP_DESCRIPTOR **) = {VipSendDone, VipRecvDone};
    VIP_RETURN (*waits[])(VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR **) = {VipSendWait, VipRecvWait};
    VIP_RETURN (*posts[])(VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE) = {VipPostSend, VipPostRecv};
    for (at = 0; at < 2; at++) {
        found = made;
        GIVES(VIP_DESCRIPTOR_ERROR, dones[at](own->vi, &found));
        CHECK(found == NULL);
        found = made;
        GIVES(VIP_DESCRIPTOR_ERROR, waits[at](own->vi, 10, &found));
        CHECK(found == NULL);
        GIVES(VIP_INVALID_PARAMETER, dones[at](own->vi, NULL));
        GIVES(VIP_INVALID_PARAMETER, waits[at](own->vi, 10, NULL));
        GIVES(VIP_INVALID_PARAMETER, dones[at](own->nic, &found));
        GIVES(VIP_INVALID_PARAMETER, waits[at](own->nic, 10, &found));
        GIVES(VIP_INVALID_PARAMETER, posts[at](own->vi, NULL, own->handle));
        GIVES(VIP_INVALID_PARAMETER, posts[at](own->nic, made, own->handle));
        GIVES(VIP_INVALID_PARAMETER, posts[at](own->vi, made, own->handle ^ 1));
        GIVES(VIP_INVALID_PARAMETER, posts[at](own->vi, (VIP_DESCRIPTOR *)((char *)made + 16), own->handle));
        GIVES(VIP_INVALID_PARAMETER, posts[at](own->vi, (VIP_DESCRIPTOR *)(own->memory + MEMORY), own->handle));
    }
    GIVES(VIP_INVALID_PARAMETER, VipSendDone(own->vi, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipRecvDone(own->vi, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipSendWait(own->vi, 10, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipRecvWait(own->vi, 10, NULL));
    OK(VipPostRecv(own->vi, made, own->handle));
    GIVES(VIP_TIMEOUT, VipRecvWait(own->vi, 0, &found));
    GIVES(VIP_TIMEOUT, VipRecvWait(own->vi, 20, &found));
    CHECK(found == NULL);
    /* A descriptor is read once: what the program changes later has no effect. */
    made->CS.SegCount = 999;
    OK(VipQueryNic(own->nic, &nic));
    for (at = 1; at < nic.MaxDescriptorsPerQueue; at++) OK(VipPostRecv(own->vi, describe(own, 0, 4), own->handle));
    GIVES(VIP_ERROR_RESOURCE, VipPostRecv(own->vi, describe(own, 0, 4), own->handle));
    /* Sends without a connection have ended, and stay in the queue until the program takes them. */
    for (at = 0; at < nic.MaxDescriptorsPerQueue; at++) OK(VipPostSend(own->vi, describe(own, 0, 4), own->handle));
    GIVES(VIP_ERROR_RESOURCE, VipPostSend(own->vi, describe(own, 0, 4), own->handle));
    OK(VipPostDeferredSends(own->vi, VIP_FALSE, &deferred));
    CHECK(deferred == VIP_FALSE);
    GIVES(VIP_INVALID_PARAMETER, VipPostDeferredSends(own->vi, VIP_FALSE, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipPostDeferredSends(own->nic, VIP_FALSE, &deferred));
    GIVES(VIP_INVALID_PARAMETER, VipSendNotify(own->vi, NULL, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipRecvNotify(own->vi, NULL, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipSendNotify(own->nic, NULL, nothing));
    GIVES(VIP_INVALID_PARAMETER, VipRecvNotify(own->nic, NULL, nothing));
    OK(VipDisconnect(own->vi));
    drain(own);
}

/* statement: vendor-extras, vendor-codes */
static void queues(side *own) {
    VIP_CQ_HANDLE queue;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN is_receive;
    VIP_EVENT_HANDLE event;
    GIVES(VIP_INVALID_PARAMETER, VipCreateCQ(own->nic, 0, &queue));
    GIVES(VIP_INVALID_PARAMETER, VipCreateCQ(own->nic, 4, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipCreateCQ(own->vi, 4, &queue));
    GIVES(VIP_ERROR_RESOURCE, VipCreateCQ(own->nic, 1UL << 40, &queue));
    OK(VipCreateCQ(own->nic, 4, &queue));
    GIVES(VIP_NOT_DONE, VipCQDone(queue, &vi, &is_receive));
    GIVES(VIP_TIMEOUT, VipCQWait(queue, 0, &vi, &is_receive));
    GIVES(VIP_TIMEOUT, VipCQWait(queue, 20, &vi, &is_receive));
    GIVES(VIP_INVALID_PARAMETER, VipCQDone(queue, NULL, &is_receive));
    GIVES(VIP_INVALID_PARAMETER, VipCQDone(queue, &vi, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipCQWait(queue, 10, NULL, &is_receive));
    GIVES(VIP_INVALID_PARAMETER, VipCQDone(own->vi, &vi, &is_receive));
    GIVES(VIP_INVALID_PARAMETER, VipCQWait(own->vi, 10, &vi, &is_receive));
    OK(VipResizeCQ(queue, 8));
    GIVES(VIP_INVALID_PARAMETER, VipResizeCQ(queue, 0));
    GIVES(VIP_ERROR_RESOURCE, VipResizeCQ(queue, 1UL << 40));
    GIVES(VIP_INVALID_PARAMETER, VipResizeCQ(own->vi, 8));
    GIVES(VIP_INVALID_PARAMETER, VipCQNotify(queue, NULL, NULL));
    GIVES(VIP_INVALID_PARAMETER, VipCQNotify(own->vi, NULL, no_entry));
    OK(VipCQNotify(queue, NULL, no_entry));
    GIVES(VIP_ERROR_NOT_SUPPORTED, VipAddTagCQ(queue, &event, 1, 1));
    GIVES(VIP_ERROR_NOT_SUPPORTED, VipRemoveTagCQ(queue, NULL, 1));
    OK(VipDestroyCQ(queue));
    GIVES(VIP_INVALID_PARAMETER, VipDestroyCQ(queue));
}

/* statement: names */
static void names(side *own) {
    char name[] = "localhost", unknown[300], found[300];
    VIP_ULONG len = sizeof found;
    address host;
    /* No name is so long, so no server is asked. */
    memset(unknown, 'a', sizeof unknown - 1);
    unknown[sizeof unknown - 1] = 0;
    GIVES(VIP_ERROR_NAMESERVICE, VipNSGetHostByName(own->nic, name, &host.net, 0));
    GIVES(VIP_ERROR_NAMESERVICE, VipNSShutdown(own->nic));
    GIVES(VIP_INVALID_PARAMETER, VipNSShutdown(own->vi));
    host = address_of(own, 1);
    GIVES(VIP_ERROR_NAMESERVICE, VipNSGetHostByAddr(own->nic, &host.net, found, &len));
    GIVES(VIP_INVALID_PARAMETER, VipNSInit(own->vi, NULL));
    OK(VipNSInit(own->nic, NULL));
    OK(VipNSGetHostByName(own->nic, name, &host.net, 0));
    CHECK(host.net.HostAddressLen == 4 && host.net.DiscriminatorLen == 0 && host.bytes[4] == 127);
    GIVES(VIP_NO_MATCH, VipNSGetHostByName(own->nic, name, &host.net, 1000));
    GIVES(VIP_ERROR_NAMESERVICE, VipNSGetHostByName(own->nic, unknown, &host.net, 0));
    GIVES(VIP_INVALID_PARAMETER, VipNSGetHostByName(own->nic, NULL, &host.net, 0));
    GIVES(VIP_INVALID_PARAMETER, VipNSGetHostByName(own->nic, name, NULL, 0));
    GIVES(VIP_INVALID_PARAMETER, VipNSGetHostByAddr(own->nic, &host.net, NULL, &len));
    GIVES(VIP_INVALID_PARAMETER, VipNSGetHostByAddr(own->nic, &host.net, found, NULL));
    /* Whether the host has a name depends on the system. */
    if (VipNSGetHostByAddr(own->nic, &host.net, found, &len) == VIP_SUCCESS) {
        CHECK(strlen(found) + 1 == len);
        len = 1;
        GIVES(VIP_ERROR_RESOURCE, VipNSGetHostByAddr(own->nic, &host.net, found, &len));
        CHECK(strlen(found) + 1 == len);
    }
    OK(VipNSShutdown(own->nic));
}

/* What closing a NIC leaves: nothing. */
static void leftovers(side *own) {
    side other;
    VIP_DESCRIPTOR *found;
    memset(&other, 0, sizeof other);
    open_side(&other, VIP_SERVICE_UNRELIABLE, 0);
    post_receive(&other, 0, 4);
    OK(VipCloseNic(other.nic));
    GIVES(VIP_INVALID_PARAMETER, VipRecvDone(other.vi, &found));
    GIVES(VIP_INVALID_PARAMETER, VipDestroyPtag(own->nic, other.ptag));
    GIVES(VIP_INVALID_PARAMETER, VipDeregisterMem(own->nic, other.memory, other.handle));
    free(other.memory);
}

/* An error of posting is reported with its descriptor.
 * statement: error-descriptor, error-resources */
static volatile VIP_ERROR_DESCRIPTOR seen;
static volatile int seen_count;

static void see(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error) {
    CHECK(context == &seen_count);
    seen = *error;
    __atomic_add_fetch(&seen_count, 1, __ATOMIC_SEQ_CST);
}

static void errors(side *own) {
    VIP_DESCRIPTOR *made = describe(own, 0, 4);
    int left = LIMIT;
    OK(VipErrorCallback(own->nic, (VIP_PVOID)&seen_count, see));
    GIVES(VIP_INVALID_PARAMETER, VipPostSend(own->vi, made, own->handle ^ 1));
    while (__atomic_load_n(&seen_count, __ATOMIC_SEQ_CST) == 0 && left-- > 0) usleep(1000);
    CHECK(seen.ErrorCode == VIP_ERROR_POST_DESC && seen.ResourceCode == VIP_RESOURCE_DESCRIPTOR);
    CHECK(seen.NicHandle == own->nic && seen.ViHandle == own->vi && seen.DescriptorPtr == made);
    OK(VipErrorCallback(own->nic, NULL, NULL));
}

/* "A NULL error handler restores the default, which logs."
 * statement: error-default */
static void default_errors(side *own) {
    int before, ends[2], saved = dup(2);
    char text[400], name[40];
    ssize_t len, used = 0;
    side other;
    memset(&other, 0, sizeof other);
    open_side(&other, VIP_SERVICE_UNRELIABLE, 0);
    snprintf(name, sizeof name, "%p", other.vi);
    OK(VipErrorCallback(other.nic, (VIP_PVOID)&seen_count, see));
    OK(VipErrorCallback(other.nic, NULL, NULL));
    before = __atomic_load_n(&seen_count, __ATOMIC_SEQ_CST);
    CHECK(pipe(ends) == 0 && dup2(ends[1], 2) == 2 && close(ends[1]) == 0);
    OK(VipErrorCallback(own->nic, (VIP_PVOID)&seen_count, see));
    GIVES(VIP_INVALID_PARAMETER, VipPostSend(other.vi, describe(&other, 0, 4), other.handle ^ 1));
    /* The log names the VI. The handler of the other NIC is not called. */
    do {
        len = read(ends[0], text + used, sizeof text - 1 - (size_t)used);
        if (len <= 0) break;
        used += len;
        text[used] = 0;
    } while (strstr(text, name) == NULL && used < (ssize_t)sizeof text - 1);
    CHECK(dup2(saved, 2) == 2 && close(saved) == 0 && close(ends[0]) == 0);
    CHECK(strstr(text, name) != NULL && before == __atomic_load_n(&seen_count, __ATOMIC_SEQ_CST));
    OK(VipErrorCallback(own->nic, NULL, NULL));
    close_side(&other);
}

int main(void) {
    static const struct {
        const char *name;
        side_function run;
    } cases[] = {
        {"sizes", sizes},     {"nics", nics},     {"ptags", ptags}, {"memory", memory},       {"vis", vis},
        {"regions", regions}, {"descriptors", descriptors}, {"queues", queues}, {"names", names},
        {"leftovers", leftovers}, {"errors", errors},   {"default-errors", default_errors},
    };
    size_t at;
    side own;
    alarm(300);
    memset(&own, 0, sizeof own);
    current = "open";
    open_side(&own, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    for (at = 0; at < sizeof cases / sizeof *cases; at++) {
        current = cases[at].name;
        cases[at].run(&own);
        printf("%s\n", current);
    }
    close_side(&own);
    return 0;
}
