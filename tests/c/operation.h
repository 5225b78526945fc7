/* Descriptions of tagged messages, and calls that take them. */
#ifndef OPERATION_H
#define OPERATION_H

#include "check.h"

#include <string.h>

/* A message of a context in one buffer; a receive has an ignore mask of 0. */
static inline nemesia_operation in_context(uint16_t context, int32_t rank, uint64_t tag, const void *buffer,
                                           size_t len) {
    nemesia_operation it;
    memset(&it, 0, sizeof it);
    it.struct_size = sizeof it;
    it.context = context;
    it.rank = rank;
    it.tag = tag;
    it.buffer = (void *)buffer;
    it.len = len;
    return it;
}

/* The same with a send mode. */
static inline nemesia_operation in_mode(uint32_t mode, nemesia_operation it) {
    it.mode = mode;
    return it;
}

/* The same with immediate data. */
static inline nemesia_operation with_immediate(uint64_t immediate, nemesia_operation it) {
    it.flags |= NEMESIA_OPERATION_IMMEDIATE;
    it.immediate = immediate;
    return it;
}

static inline int32_t send_op(nemesia_endpoint *endpoint, nemesia_operation it) {
    it.kind = NEMESIA_OPERATION_SEND;
    return nemesia_endpoint_run(endpoint, &it, NULL);
}

static inline int32_t recv_op(nemesia_endpoint *endpoint, nemesia_operation it, nemesia_status *out_status) {
    it.kind = NEMESIA_OPERATION_RECEIVE;
    return nemesia_endpoint_run(endpoint, &it, out_status);
}

/* The library copies the structure: the request does not use it. */
static inline int32_t start_copy(nemesia_endpoint *endpoint, nemesia_operation it, uint64_t *out_request) {
    const int32_t started = nemesia_endpoint_start(endpoint, &it, out_request);
    memset(&it, 7, sizeof it);
    return started;
}

static inline int32_t isend_op(nemesia_endpoint *endpoint, nemesia_operation it, uint64_t *out_request) {
    it.kind = NEMESIA_OPERATION_SEND;
    return start_copy(endpoint, it, out_request);
}

static inline int32_t irecv_op(nemesia_endpoint *endpoint, nemesia_operation it, uint64_t *out_request) {
    it.kind = NEMESIA_OPERATION_RECEIVE;
    return start_copy(endpoint, it, out_request);
}

#endif
