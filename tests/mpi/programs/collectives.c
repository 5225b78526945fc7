/* All collectives, with checked contents, also among a part of the ranks and without waiting. */
#include "check.h"

enum { MOST = 30011 };
static const int counts[] = {1, 3, 17, 1000, MOST};

static long sum_of(int ranks, int at) {
    return (long)ranks * (ranks - 1) / 2 + (long)ranks * at;
}

static void check_all(MPI_Comm comm, int count) {
    int me, ranks, root;
    long *mine, *all;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &ranks);
    mine = malloc(sizeof *mine * (size_t)(count * ranks));
    all = malloc(sizeof *all * (size_t)(count * ranks));
    CHECK(mine != NULL && all != NULL);
    for (root = 0; root < ranks; root++) {
        for (int at = 0; at < count; at++) mine[at] = me == root ? 5 * at + root : -1;
        MPI_Bcast(mine, count, MPI_LONG, root, comm);
        for (int at = 0; at < count; at++) CHECK(mine[at] == 5 * at + root);
        for (int at = 0; at < count; at++) mine[at] = me + at;
        MPI_Reduce(mine, all, count, MPI_LONG, MPI_SUM, root, comm);
        for (int at = 0; me == root && at < count; at++) CHECK(all[at] == sum_of(ranks, at));
        MPI_Gather(mine, count, MPI_LONG, all, count, MPI_LONG, root, comm);
        for (int at = 0; me == root && at < count * ranks; at++) CHECK(all[at] == at / count + at % count);
        for (int at = 0; at < count * ranks; at++) all[at] = me == root ? at : -1;
        MPI_Scatter(all, count, MPI_LONG, mine, count, MPI_LONG, root, comm);
        for (int at = 0; at < count; at++) CHECK(mine[at] == me * count + at);
    }
    for (int at = 0; at < count; at++) mine[at] = me + at;
    MPI_Allreduce(mine, all, count, MPI_LONG, MPI_SUM, comm);
    for (int at = 0; at < count; at++) CHECK(all[at] == sum_of(ranks, at));
    MPI_Allgather(mine, count, MPI_LONG, all, count, MPI_LONG, comm);
    for (int at = 0; at < count * ranks; at++) CHECK(all[at] == at / count + at % count);
    MPI_Scan(mine, all, count, MPI_LONG, MPI_SUM, comm);
    for (int at = 0; at < count; at++) CHECK(all[at] == sum_of(me + 1, at));
    for (int at = 0; at < count * ranks; at++) mine[at] = 1000L * me + at / count;
    MPI_Alltoall(mine, count, MPI_LONG, all, count, MPI_LONG, comm);
    for (int at = 0; at < count * ranks; at++) CHECK(all[at] == 1000L * (at / count) + me);
    for (int at = 0; at < count * ranks; at++) mine[at] = me + at;
    MPI_Reduce_scatter_block(mine, all, count, MPI_LONG, MPI_SUM, comm);
    for (int at = 0; at < count; at++) CHECK(all[at] == sum_of(ranks, me * count + at));
    free(mine);
    free(all);
}

static void without_waiting(void) {
    long mine = rank + 1, sum = 0, value = rank == 0 ? 77 : 0;
    MPI_Request requests[3];
    MPI_Iallreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
    MPI_Ibcast(&value, 1, MPI_LONG, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Ibarrier(MPI_COMM_WORLD, &requests[2]);
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    CHECK(sum == (long)size * (size + 1) / 2 && value == 77);
}

static void communicators(void) {
    for (int round = 0; round < 20; round++) {
        MPI_Comm copy, part;
        MPI_Comm_dup(MPI_COMM_WORLD, &copy);
        check_all(copy, 5);
        MPI_Comm_split(copy, rank % 2, -rank, &part);
        check_all(part, 5);
        MPI_Comm_free(&part);
        MPI_Comm_free(&copy);
    }
}

int main(int count, char **words) {
    begin(&count, &words);
    for (size_t at = 0; at < sizeof counts / sizeof *counts; at++) check_all(MPI_COMM_WORLD, counts[at]);
    without_waiting();
    communicators();
    for (int round = 0; round < 1000; round++) MPI_Barrier(MPI_COMM_WORLD);
    return end("collectives");
}
