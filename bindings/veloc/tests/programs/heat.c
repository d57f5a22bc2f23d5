/* Heat in a plate, cut into stripes: one per rank. It can be killed and started again, and ends with the same plate.
 *
 * heat CONFIG memory|file STEPS EVERY OUT [RANK STEP]: the last two say which rank ends everything, and before which step. */
#include "check.h"

#include <signal.h>
#include <unistd.h>
#include <veloc.h>

enum { WIDTH = 96, HEIGHT = 24 };

static double plate[HEIGHT + 2][WIDTH], before[HEIGHT + 2][WIDTH];
static int rank, count, step;

static void advance(void) {
    const int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < count ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(plate[1], WIDTH, MPI_DOUBLE, up, 0, plate[HEIGHT + 1], WIDTH, MPI_DOUBLE, down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(plate[HEIGHT], WIDTH, MPI_DOUBLE, down, 1, plate[0], WIDTH, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    memcpy(before, plate, sizeof plate);
    for (int y = 1; y <= HEIGHT; y++)
        for (int x = 1; x + 1 < WIDTH; x++)
            plate[y][x] = 0.25 * (before[y - 1][x] + before[y + 1][x] + before[y][x - 1] + before[y][x + 1]);
}

static void save_file(int version) {
    char original[VELOC_MAX_NAME], routed[VELOC_MAX_NAME];
    snprintf(original, sizeof original, "heat-%d-%d.dat", version, rank);
    CHECK(VELOC_Checkpoint_wait() == VELOC_SUCCESS);
    CHECK(VELOC_Checkpoint_begin("heat", version) == VELOC_SUCCESS);
    CHECK(VELOC_Route_file(original, routed) == VELOC_SUCCESS);
    FILE *file = fopen(routed, "wb");
    CHECK(file != NULL);
    int is_well = fwrite(&step, sizeof step, 1, file) == 1 && fwrite(plate, sizeof plate, 1, file) == 1;
    is_well = fclose(file) == 0 && is_well;
    CHECK(VELOC_Checkpoint_end(is_well) == VELOC_SUCCESS);
}

static void restore_file(int version) {
    char original[VELOC_MAX_NAME], routed[VELOC_MAX_NAME];
    snprintf(original, sizeof original, "heat-%d-%d.dat", version, rank);
    CHECK(VELOC_Restart_begin("heat", version) == VELOC_SUCCESS);
    CHECK(VELOC_Route_file(original, routed) == VELOC_SUCCESS);
    FILE *file = fopen(routed, "rb");
    CHECK(file != NULL);
    CHECK(fread(&step, sizeof step, 1, file) == 1 && fread(plate, sizeof plate, 1, file) == 1);
    fclose(file);
    CHECK(VELOC_Restart_end(1) == VELOC_SUCCESS);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    CHECK(argc >= 6);
    const int is_file = strcmp(argv[2], "file") == 0, steps = atoi(argv[3]), every = atoi(argv[4]);
    const int fatal_rank = argc > 7 ? atoi(argv[6]) : -1, fatal_step = argc > 7 ? atoi(argv[7]) : -1;
    if (VELOC_Init(MPI_COMM_WORLD, argv[1]) != VELOC_SUCCESS)
        return 2;
    for (int x = 0; x < WIDTH; x++)
        plate[0][x] = rank == 0 ? 100.0 + x : 0.0;
    CHECK(is_file || VELOC_Mem_protect(0, &step, 1, sizeof step) == VELOC_SUCCESS);
    CHECK(is_file || VELOC_Mem_protect(1, plate, sizeof plate / sizeof(double), sizeof(double)) == VELOC_SUCCESS);
    const int version = VELOC_Restart_test("heat", 0);
    if (version > 0) {
        if (is_file)
            restore_file(version);
        else
            CHECK(VELOC_Restart("heat", version) == VELOC_SUCCESS);
        CHECK(step == version);
    }
    if (rank == 0)
        printf("begins at %d\n", step);
    while (step < steps) {
        if (rank == fatal_rank && step == fatal_step)
            kill(getpid(), SIGKILL);
        advance();
        step++;
        if (step % every == 0) {
            if (is_file)
                save_file(step);
            else
                CHECK(VELOC_Checkpoint("heat", step) == VELOC_SUCCESS);
        }
    }
    CHECK(VELOC_Finalize(1) == VELOC_SUCCESS);
    char name[VELOC_MAX_NAME];
    snprintf(name, sizeof name, "%s-%d", argv[5], rank);
    FILE *out = fopen(name, "wb");
    CHECK(out != NULL && fwrite(plate, sizeof plate, 1, out) == 1 && fclose(out) == 0);
    MPI_Finalize();
    return 0;
}
