/* Does what its arguments say, one after the other, and ends where something is not as they say.
 *
 * steps mpi|ID CONFIG STEP...: with MPI, or by itself under a number. In a step, `:` separates words and `,` ids. */
#include "check.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>
#include <veloc.h>

enum { REGIONS = 8, IDS = 16 };

static int *regions[REGIONS];
static size_t counts[REGIONS];
static int rank;

static int value(int seed, int id, size_t index) {
    return seed * 1000003 + id * 10007 + rank * 131 + (int)index;
}

static void fill(int seed) {
    for (int id = 0; id < REGIONS; id++)
        for (size_t index = 0; index < counts[id]; index++)
            regions[id][index] = value(seed, id, index);
}

static void expect(int id, int seed, size_t count) {
    CHECK(count <= counts[id]);
    for (size_t index = 0; index < count; index++)
        CHECK(regions[id][index] == value(seed, id, index));
}

/* The region goes to other memory than before. */
static void protect(int id, size_t count, const char *name) {
    regions[id] = calloc(count, sizeof(int));
    counts[id] = count;
    CHECK(regions[id] != NULL);
    if (name != NULL)
        CHECK(VELOC_Region_protect(id, regions[id], count, sizeof(int), name) == VELOC_SUCCESS);
    else
        CHECK(VELOC_Mem_protect(id, regions[id], count, sizeof(int)) == VELOC_SUCCESS);
}

static int list(char *text, int *ids) {
    int count = 0;
    char *rest = NULL;
    for (char *id = strtok_r(text, ",", &rest); id != NULL && count < IDS; id = strtok_r(NULL, ",", &rest))
        ids[count++] = atoi(id);
    return count;
}

static int is(const char *verb, const char *wanted) {
    return strcmp(verb, wanted) == 0;
}

static void restart(const char *verb, char **words) {
    int ids[IDS], count;
    if (is(verb, "restart")) {
        CHECK(VELOC_Restart(words[1], atoi(words[2])) == VELOC_SUCCESS);
    } else if (is(verb, "restart_fails")) {
        CHECK(VELOC_Restart(words[1], atoi(words[2])) == VELOC_FAILURE);
    } else if (is(verb, "recover")) {
        count = list(words[4], ids);
        CHECK(VELOC_Restart_begin(words[1], atoi(words[2])) == VELOC_SUCCESS);
        CHECK(VELOC_Recover_selective(atoi(words[3]), ids, count) == VELOC_SUCCESS);
        CHECK(VELOC_Restart_end(1) == VELOC_SUCCESS);
    } else if (is(verb, "size")) {
        CHECK(VELOC_Restart_begin(words[1], atoi(words[2])) == VELOC_SUCCESS);
        CHECK(VELOC_Recover_size(atoi(words[3])) == atoi(words[4]));
        CHECK(VELOC_Restart_end(1) == VELOC_SUCCESS);
    } else {
        fprintf(stderr, "there is no step %s\n", verb);
        exit(4);
    }
}

static void checkpoint(const char *verb, char **words) {
    int ids[IDS], count;
    if (is(verb, "save")) {
        CHECK(VELOC_Checkpoint(words[1], atoi(words[2])) == VELOC_SUCCESS);
    } else if (is(verb, "save_fails")) {
        CHECK(VELOC_Checkpoint(words[1], atoi(words[2])) == VELOC_FAILURE);
    } else if (is(verb, "save_without")) { /* on all ranks but this one, of which nothing can be read */
        const int is_well = atoi(words[3]) != rank;
        CHECK(is_well || VELOC_Mem_protect(1, (void *)8, 1, 8) == VELOC_SUCCESS);
        CHECK(VELOC_Checkpoint(words[1], atoi(words[2])) == (is_well ? VELOC_SUCCESS : VELOC_FAILURE));
    } else if (is(verb, "some")) {
        count = list(words[4], ids);
        CHECK(VELOC_Checkpoint_begin(words[1], atoi(words[2])) == VELOC_SUCCESS);
        CHECK(VELOC_Checkpoint_selective(atoi(words[3]), ids, count) == VELOC_SUCCESS);
        CHECK(VELOC_Checkpoint_end(1) == VELOC_SUCCESS);
    } else if (is(verb, "wait")) {
        CHECK(VELOC_Checkpoint_wait() == VELOC_SUCCESS);
        CHECK(VELOC_Checkpoint_finished() == VELOC_SUCCESS);
    } else if (is(verb, "wait_fails")) {
        CHECK(VELOC_Checkpoint_wait() == VELOC_FAILURE);
        CHECK(VELOC_Checkpoint_wait() == VELOC_SUCCESS); /* it is said once */
    } else if (is(verb, "poll")) {
        while (VELOC_Checkpoint_finished() != VELOC_SUCCESS)
            usleep(1000);
    } else if (is(verb, "test")) {
        const int found = VELOC_Restart_test(words[1], atoi(words[2]));
        if (found != atoi(words[3]))
            fprintf(stderr, "found %d\n", found);
        CHECK(found == atoi(words[3]));
    } else {
        restart(verb, words);
    }
}

static void nothing(int number) {
    (void)number;
}

static void interrupt(void) {
    struct sigaction action = {0};
    const struct itimerval every = {{0, 1000}, {0, 1000}};
    action.sa_handler = nothing; /* without SA_RESTART */
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
}

static void step(char *text) {
    char *words[6] = {0}, *rest = NULL;
    int count = 0;
    for (char *word = strtok_r(text, ":", &rest); word != NULL && count < 6; word = strtok_r(NULL, ":", &rest))
        words[count++] = word;
    const char *verb = words[0];
    if (is(verb, "protect"))
        protect(atoi(words[1]), (size_t)atol(words[2]), words[3]);
    else if (is(verb, "unprotect"))
        CHECK(VELOC_Mem_unprotect(atoi(words[1])) == VELOC_SUCCESS);
    else if (is(verb, "free")) {
        CHECK(VELOC_Mem_unprotect(atoi(words[1])) == VELOC_SUCCESS);
        free(regions[atoi(words[1])]);
        counts[atoi(words[1])] = 0;
    } else if (is(verb, "fill"))
        fill(atoi(words[1]));
    else if (is(verb, "expect"))
        expect(atoi(words[1]), atoi(words[2]), (size_t)atol(words[3]));
    else if (is(verb, "move"))
        CHECK(rename(words[1], words[2]) == 0);
    else if (is(verb, "move_once"))
        CHECK(rank != 0 || rename(words[1], words[2]) == 0);
    else if (is(verb, "cleanup"))
        CHECK(VELOC_Cleanup(words[1]) == VELOC_SUCCESS);
    else if (is(verb, "cleanup_fails"))
        CHECK(VELOC_Cleanup(words[1]) == VELOC_FAILURE);
    else if (is(verb, "interrupt")) /* every call from here on, by a signal every millisecond */
        interrupt();
    else if (is(verb, "barrier"))
        MPI_Barrier(MPI_COMM_WORLD);
    else if (is(verb, "sleep")) {
        if (atoi(words[1]) == rank)
            usleep(1000 * (useconds_t)atoi(words[2]));
    } else if (is(verb, "die")) {
        if (atoi(words[1]) == rank)
            _exit(9);
    } else if (is(verb, "exit"))
        exit(0);
    else
        checkpoint(verb, words);
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    const int has_mpi = is(argv[1], "mpi");
    if (has_mpi) {
        MPI_Init(NULL, NULL);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        CHECK(VELOC_Init(MPI_COMM_WORLD, argv[2]) == VELOC_SUCCESS);
    } else {
        rank = atoi(argv[1]);
        CHECK(VELOC_Init_single((unsigned int)rank, argv[2]) == VELOC_SUCCESS);
    }
    for (int index = 3; index < argc; index++) {
        fprintf(stderr, "rank %d: %s\n", rank, argv[index]);
        step(argv[index]);
    }
    CHECK(VELOC_Finalize(1) == VELOC_SUCCESS);
    if (has_mpi)
        MPI_Finalize();
    return 0;
}
