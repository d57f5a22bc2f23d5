/* One life of a program that makes random calls, beside a model of what they must do.
 *
 * model mpi|ID CONFIG SEED LIFE SURE DIES_AT: the state of a step is given by its number. SURE is the lowest version that may be found;
 * at step DIES_AT one rank is killed. Rank 0 says which version is sure, as soon as it is. */
#include "check.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <veloc.h>

/* What must be so even while another rank dies. */
#define PROMISED(condition)                                                                  \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: a promise is broken: %s\n", __FILE__, __LINE__, #condition); \
            exit(4);                                                                         \
        }                                                                                    \
    } while (0)

enum { STEPS = 12, COUNT = 20000 };

static int field[COUNT], more[100], stamp, rank, ranks = 1;

/* Most of it is as in the step before. */
static int value(int of, int index) {
    return index / 512 % 7 == of % 7 ? of * 100003 + rank * 131 + index : rank * 131 + index;
}

static void fill(int with) {
    stamp = with;
    for (int index = 0; index < COUNT; index++)
        field[index] = value(with, index);
    for (int index = 0; index < 100; index++)
        more[index] = with * 17 + rank + index;
}

static void expect(int with) {
    PROMISED(stamp == with);
    for (int index = 0; index < COUNT; index++)
        PROMISED(field[index] == value(with, index));
    for (int index = 0; index < 100; index++)
        PROMISED(more[index] == with * 17 + rank + index);
}

static uint64_t state;

static int below(int end) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)end);
}

static void protect(void) {
    CHECK(VELOC_Mem_protect(1, field, COUNT, sizeof(int)) == VELOC_SUCCESS);
    CHECK(VELOC_Mem_protect(2, more, 100, sizeof(int)) == VELOC_SUCCESS);
    CHECK(VELOC_Mem_protect(3, &stamp, 1, sizeof(int)) == VELOC_SUCCESS);
}

/* All ranks have the same number; with it, the version is complete. */
static int same(int number) {
    int least = number, most = number;
    if (ranks > 1) {
        MPI_Allreduce(&number, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        MPI_Allreduce(&number, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    return least == most;
}

static void save(int version, int is_split) {
    fill(version);
    if (!is_split) {
        CHECK(VELOC_Checkpoint("run", version) == VELOC_SUCCESS);
        return;
    }
    CHECK(VELOC_Checkpoint_begin("run", version) == VELOC_SUCCESS);
    CHECK(VELOC_Checkpoint_mem() == VELOC_SUCCESS);
    CHECK(VELOC_Checkpoint_end(1) == VELOC_SUCCESS);
}

static void restart(int version, int is_split) {
    fill(0);
    if (is_split) {
        CHECK(VELOC_Restart_begin("run", version) == VELOC_SUCCESS);
        CHECK(VELOC_Recover_size(1) == (int)sizeof field && VELOC_Recover_size(9) == 0);
        CHECK(VELOC_Recover_mem() == VELOC_SUCCESS);
        CHECK(VELOC_Restart_end(1) == VELOC_SUCCESS);
    } else {
        CHECK(VELOC_Restart("run", version) == VELOC_SUCCESS);
    }
    expect(version);
}

static int waits(int version) {
    CHECK(VELOC_Checkpoint_wait() == VELOC_SUCCESS);
    CHECK(same(version)); /* all have waited */
    if (rank == 0) {
        printf("sure %d\n", version);
        fflush(stdout);
    }
    return version;
}

static void live(int sure, int dies_at) {
    const int victim = below(ranks);
    protect();
    int newest = VELOC_Restart_test("run", 0);
    PROMISED(newest >= sure || (sure == 0 && newest == VELOC_FAILURE));
    PROMISED(same(newest));
    if (newest > 0)
        restart(newest, below(2));
    newest = newest > 0 ? newest : 0;
    for (int step = 0; step < STEPS; step++) {
        if (step == dies_at && rank == victim)
            kill(getpid(), SIGKILL);
        const int choice = below(8), is_split = below(2), gap = below(3);
        if (choice < 5) {
            newest += 1 + gap;
            save(newest, is_split);
            if (choice < 2)
                sure = waits(newest);
        } else if (choice == 5 && sure > 0 && newest == sure) {
            restart(newest, is_split);
        } else if (choice == 6 && newest > 0) {
            CHECK(VELOC_Checkpoint_wait() == VELOC_SUCCESS && same(newest));
            const int found = VELOC_Restart_test("run", 0);
            CHECK(found == newest && VELOC_Restart_test("nothing", 0) == VELOC_FAILURE);
        } else {
            CHECK(VELOC_Mem_unprotect(2) == VELOC_SUCCESS && VELOC_Mem_unprotect(2) == VELOC_FAILURE);
            protect();
        }
    }
    if (newest > sure)
        waits(newest);
}

int main(int argc, char **argv) {
    CHECK(argc == 7);
    const int has_mpi = strcmp(argv[1], "mpi") == 0;
    if (has_mpi) {
        MPI_Init(NULL, NULL);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks);
        CHECK(VELOC_Init(MPI_COMM_WORLD, argv[2]) == VELOC_SUCCESS);
    } else {
        rank = atoi(argv[1]);
        CHECK(VELOC_Init_single((unsigned int)rank, argv[2]) == VELOC_SUCCESS);
    }
    state = (uint64_t)atoi(argv[3]) * 1000003 + (uint64_t)atoi(argv[4]);
    live(atoi(argv[5]), atoi(argv[6]));
    CHECK(VELOC_Finalize(1) == VELOC_SUCCESS);
    if (has_mpi)
        MPI_Finalize();
    return 0;
}
