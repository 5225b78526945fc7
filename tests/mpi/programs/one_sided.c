/* One-sided communication: puts, gets, accumulates, fetches and swaps, with fences and with locks. */
#include "check.h"

enum { WORDS = 5003, ROUNDS = 20 };

static void with_fences(long *memory, MPI_Win window) {
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    long *words = malloc(sizeof *words * WORDS);
    CHECK(words != NULL);
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < WORDS; at++) words[at] = 1000000L * rank + 1000L * round + at;
        MPI_Win_fence(0, window);
        MPI_Put(words, WORDS, MPI_LONG, to, 0, WORDS, MPI_LONG, window);
        MPI_Win_fence(0, window);
        for (int at = 0; at < WORDS; at++) CHECK(memory[at] == 1000000L * from + 1000L * round + at);
        MPI_Win_fence(0, window);
        MPI_Get(words, WORDS, MPI_LONG, to, 0, WORDS, MPI_LONG, window);
        MPI_Win_fence(0, window);
        for (int at = 0; at < WORDS; at++) CHECK(words[at] == 1000000L * rank + 1000L * round + at);
    }
    free(words);
}

static void with_locks(long *memory, MPI_Win window) {
    const long one = 1;
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    memory[0] = memory[1] = 0;
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < ROUNDS; round++) {
        long old;
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        MPI_Accumulate(&one, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, window);
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 1, MPI_SUM, window);
        MPI_Win_unlock(0, window);
        CHECK(old >= round && old < (long)size * ROUNDS);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        CHECK(memory[0] == (long)size * ROUNDS && memory[1] == (long)size * ROUNDS);
        MPI_Win_unlock(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void swapped(long *memory, MPI_Win window) {
    long old, expected = size * ROUNDS, mine = -1 - rank;
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Compare_and_swap(&mine, &expected, &old, MPI_LONG, 0, 0, window);
    MPI_Win_unlock(0, window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Get(&expected, 1, MPI_LONG, 0, 0, 1, MPI_LONG, window);
    MPI_Win_unlock(0, window);
    /* One of the ranks has won, and knows it. */
    CHECK((expected == mine) == (old == size * ROUNDS) && expected < 0);
    MPI_Barrier(MPI_COMM_WORLD);
    (void)memory;
}

/* Memory that is attached to a window later, by all ranks at the same time, or by each for itself. MPICH registers the
 * whole memory of the process for such a window. */
static void attached(int collectively) {
    const int ranks = size;
    long *memory = calloc(WORDS, sizeof *memory), *ones = malloc(sizeof *ones * WORDS), old = -1;
    MPI_Aint *places = malloc(sizeof *places * (size_t)ranks), here;
    MPI_Info info;
    MPI_Win window;
    CHECK(memory != NULL && ones != NULL && places != NULL);
    for (int at = 0; at < WORDS; at++) ones[at] = 1;
    MPI_Info_create(&info);
    MPI_Info_set(info, "coll_attach", collectively ? "true" : "false");
    MPI_Win_create_dynamic(info, MPI_COMM_WORLD, &window);
    MPI_Win_attach(window, memory, (MPI_Aint)(sizeof *memory * WORDS));
    MPI_Get_address(memory, &here);
    MPI_Allgather(&here, 1, MPI_AINT, places, 1, MPI_AINT, MPI_COMM_WORLD);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Win_fence(0, window);
        for (int to = 0; to < ranks; to++) {
            const int length = round % 2 ? WORDS : 1;
            MPI_Accumulate(ones, length, MPI_LONG, to, places[to], length, MPI_LONG, MPI_SUM, window);
        }
        MPI_Win_fence(0, window);
    }
    CHECK(memory[0] == (long)ranks * ROUNDS && memory[WORDS - 1] == (long)ranks * ROUNDS / 2);
    MPI_Win_fence(0, window);
    MPI_Get(&old, 1, MPI_LONG, (rank + 1) % ranks, places[(rank + 1) % ranks], 1, MPI_LONG, window);
    MPI_Win_fence(0, window);
    CHECK(old == (long)ranks * ROUNDS);
    MPI_Win_fence(0, window);
    MPI_Put(ones, WORDS, MPI_LONG, (rank + 1) % ranks, places[(rank + 1) % ranks], WORDS, MPI_LONG, window);
    MPI_Win_fence(0, window);
    CHECK(memory[0] == 1 && memory[WORDS - 1] == 1);
    MPI_Win_detach(window, memory);
    MPI_Win_free(&window);
    MPI_Info_free(&info);
    free(places);
    free(ones);
    free(memory);
}

int main(int count, char **words) {
    long *memory;
    MPI_Win window;
    begin(&count, &words);
    memory = malloc(sizeof *memory * WORDS);
    CHECK(memory != NULL);
    MPI_Win_create(memory, sizeof *memory * WORDS, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    with_fences(memory, window);
    with_locks(memory, window);
    swapped(memory, window);
    MPI_Win_free(&window);
    free(memory);
    attached(0);
    attached(1);
    return end("one_sided");
}
