/* Checks that report the place and the library's error message. */
#ifndef CHECK_H
#define CHECK_H

#include <nemesia.h>

#include <stdio.h>
#include <stdlib.h>

/* Reports a failed check and ends the program. */
static void fail_at(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s\n    last error: %s\n", file, line, what, nemesia_last_error_message());
    exit(EXIT_FAILURE);
}

#define CHECK(condition)                                                                                      \
    do {                                                                                                      \
        if (!(condition)) fail_at(__FILE__, __LINE__, #condition);                                            \
    } while (0)

#define GIVES(status, call)                                                                                   \
    do {                                                                                                      \
        int32_t given_ = (call);                                                                              \
        if (given_ != (status)) {                                                                             \
            fprintf(stderr, "returned %s instead of " #status "\n", nemesia_status_name(given_));             \
            fail_at(__FILE__, __LINE__, #call);                                                               \
        }                                                                                                     \
    } while (0)

#define OK(call) GIVES(NEMESIA_OK, call)

#endif
