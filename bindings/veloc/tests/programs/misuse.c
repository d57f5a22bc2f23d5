/* Every mistake that a program can make: all of them end with VELOC_FAILURE, and none with the program.
 *
 * misuse CONFIG NO_MODE MISSING READ_ONLY */
#include "check.h"

#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <veloc.h>

#define FAILS(call) CHECK((call) == VELOC_FAILURE)
#define UNKNOWN(call) CHECK((call) == -2) /* it could not be found out */
#define WORKS(call) CHECK((call) == VELOC_SUCCESS)

static void before_init(char **argv) {
    char routed[VELOC_MAX_NAME];
    int number = 1;
    FAILS(VELOC_Finalize(1));
    FAILS(VELOC_Mem_protect(1, &number, 1, sizeof number));
    FAILS(VELOC_Mem_unprotect(1));
    FAILS(VELOC_Mem_clear());
    FAILS(VELOC_Checkpoint("x", 1));
    FAILS(VELOC_Checkpoint_wait());
    FAILS(VELOC_Checkpoint_finished());
    UNKNOWN(VELOC_Restart_test("x", 0));
    FAILS(VELOC_Restart("x", 1));
    FAILS(VELOC_Route_file("x", routed));
    FAILS(VELOC_Recover_size(1));
    FAILS(VELOC_Cleanup("x"));
    FAILS(VELOC_Init_single(1, argv[2]));
    FAILS(VELOC_Init_single(1, argv[3]));
    FAILS(VELOC_Init_single(1, NULL));
    FAILS(VELOC_Init(MPI_COMM_WORLD, argv[1]));
}

static void arguments(void) {
    static int numbers[100];
    char routed[VELOC_MAX_NAME];
    FAILS(VELOC_Mem_protect(1, NULL, 10, 4));
    FAILS(VELOC_Mem_protect(1, numbers, SIZE_MAX / 2, 4));
    FAILS(VELOC_Mem_protect(1, numbers, SIZE_MAX / 2, 2));
    FAILS(VELOC_Region_protect(1, numbers, 10, 4, NULL));
    FAILS(VELOC_Region_unprotect(1, NULL));
    FAILS(VELOC_Region_clear(NULL));
    FAILS(VELOC_Mem_unprotect(77));
    FAILS(VELOC_Checkpoint(NULL, 1));
    FAILS(VELOC_Checkpoint("", 1));
    FAILS(VELOC_Checkpoint("../up", 1));
    FAILS(VELOC_Checkpoint("x", -1));
    FAILS(VELOC_Checkpoint("x", 1)); /* nothing is protected */
    UNKNOWN(VELOC_Restart_test(NULL, 0));
    UNKNOWN(VELOC_Restart_test("x", -5));
    FAILS(VELOC_Restart_test("x", 0)); /* nothing was saved */
    FAILS(VELOC_Restart("x", 1));
    FAILS(VELOC_Restart_begin(NULL, 1));
    FAILS(VELOC_Cleanup(NULL));
    FAILS(VELOC_Route_file("x", routed));
}

static void order(void) {
    static int numbers[100];
    int ids[] = {1, 9};
    char routed[VELOC_MAX_NAME];
    FAILS(VELOC_Checkpoint_mem());
    FAILS(VELOC_Checkpoint_end(1));
    FAILS(VELOC_Recover_mem());
    FAILS(VELOC_Restart_end(1));
    WORKS(VELOC_Mem_protect(1, numbers, 100, sizeof(int)));
    WORKS(VELOC_Mem_protect(1, numbers, 100, sizeof(int))); /* again */
    WORKS(VELOC_Mem_protect(2, NULL, 0, 4));
    WORKS(VELOC_Checkpoint_begin("x", 1));
    FAILS(VELOC_Checkpoint_begin("x", 2));
    FAILS(VELOC_Checkpoint_wait());
    UNKNOWN(VELOC_Restart_test("x", 0));
    FAILS(VELOC_Restart_begin("x", 1));
    FAILS(VELOC_Checkpoint_selective(7, ids, 1));
    FAILS(VELOC_Checkpoint_end(1)); /* nothing was saved */
    WORKS(VELOC_Checkpoint_begin("x", 2));
    FAILS(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, ids, 2)); /* no region 9 */
    FAILS(VELOC_Checkpoint_end(1));
    WORKS(VELOC_Checkpoint_begin("x", 3));
    FAILS(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, NULL, 2));
    FAILS(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, ids, -2));
    WORKS(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, ids, 1));
    WORKS(VELOC_Checkpoint_end(1));
    WORKS(VELOC_Checkpoint_begin("file", 1));
    FAILS(VELOC_Route_file(NULL, routed));
    FAILS(VELOC_Route_file("x", NULL));
    WORKS(VELOC_Route_file("x", routed));
    FAILS(VELOC_Checkpoint_end(1)); /* the file was not written */
    FAILS(VELOC_Restart_test("file", 0));
    WORKS(VELOC_Checkpoint_begin("file", 2));
    WORKS(VELOC_Route_file("x", routed));
    fclose(fopen(routed, "w"));
    FAILS(VELOC_Checkpoint_end(0)); /* the program says so */
    FAILS(VELOC_Restart_test("file", 0));
    WORKS(VELOC_Checkpoint_begin("file", 3));
    WORKS(VELOC_Route_file("x", routed));
    fclose(fopen(routed, "w"));
    WORKS(VELOC_Checkpoint_end(1)); /* an empty file is a file */
    WORKS(VELOC_Restart_begin("file", 3));
    FAILS(VELOC_Recover_mem());
    WORKS(VELOC_Route_file("x", routed));
    WORKS(VELOC_Restart_end(1));
}

static void sizes(void) {
    static int numbers[100], fewer[50];
    int ids[] = {1, 9};
    char routed[VELOC_MAX_NAME];
    WORKS(VELOC_Mem_clear());
    WORKS(VELOC_Mem_protect(1, numbers, 100, sizeof(int)));
    WORKS(VELOC_Checkpoint("sizes", 1));
    WORKS(VELOC_Mem_protect(1, fewer, 50, sizeof(int)));
    FAILS(VELOC_Restart("sizes", 1));
    FAILS(VELOC_Restart("sizes", 2));
    WORKS(VELOC_Mem_clear());
    FAILS(VELOC_Restart("sizes", 1));
    WORKS(VELOC_Restart_begin("sizes", 1));
    FAILS(VELOC_Recover_selective(VELOC_RECOVER_SOME, ids, 2));
    FAILS(VELOC_Recover_selective(3, ids, 1));
    FAILS(VELOC_Route_file("x", routed)); /* it was memory */
    CHECK(VELOC_Recover_size(1) == 400 && VELOC_Recover_size(9) == 0);
    WORKS(VELOC_Restart_end(1));
    FAILS(VELOC_Recover_size(1));
    WORKS(VELOC_Mem_protect(1, numbers, 100, sizeof(int)));
    WORKS(VELOC_Restart("sizes", 1));
}

static void memory(void) {
    static const int constant[100] = {1, 2, 3};
    const size_t bytes = 1 << 20;
    char *gone = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(gone != MAP_FAILED);
    WORKS(VELOC_Mem_clear());
    WORKS(VELOC_Mem_protect(1, gone, bytes, 1));
    WORKS(VELOC_Checkpoint("memory", 1));
    munmap(gone, bytes);
    FAILS(VELOC_Checkpoint("memory", 2));
    FAILS(VELOC_Restart("memory", 1));
    WORKS(VELOC_Mem_protect(1, (void *)8, 100, 4));
    FAILS(VELOC_Checkpoint("memory", 3));
    WORKS(VELOC_Mem_protect(1, (void *)(uintptr_t)constant, 100, sizeof(int)));
    WORKS(VELOC_Checkpoint("memory", 4));
    FAILS(VELOC_Restart("memory", 4)); /* it cannot be written */
}

static void *in_thread(void *numbers) {
    WORKS(VELOC_Mem_protect(1, numbers, 100, sizeof(int)));
    WORKS(VELOC_Checkpoint("thread", 1));
    return NULL;
}

static void thread(void) {
    static int numbers[100] = {1, 2, 3};
    pthread_t other;
    WORKS(VELOC_Mem_clear());
    CHECK(pthread_create(&other, NULL, in_thread, numbers) == 0 && pthread_join(other, NULL) == 0);
    numbers[1] = 7;
    WORKS(VELOC_Restart("thread", 1));
    CHECK(numbers[1] == 2);
}

static void places(void) {
    static char bytes[1000];
    memset(bytes, 3, sizeof bytes);
    WORKS(VELOC_Mem_clear());
    WORKS(VELOC_Mem_protect(1, bytes + 3, 100, sizeof(double))); /* not aligned */
    WORKS(VELOC_Checkpoint("places", 1));
    memset(bytes, 4, sizeof bytes);
    WORKS(VELOC_Restart("places", 1));
    CHECK(bytes[2] == 4 && bytes[3] == 3 && bytes[802] == 3 && bytes[803] == 4);
    WORKS(VELOC_Mem_protect(2, bytes + 103, 100, 1)); /* within the first */
    WORKS(VELOC_Checkpoint("places", 2));
    memset(bytes, 5, sizeof bytes);
    WORKS(VELOC_Restart("places", 2)); /* both had the same bytes */
    CHECK(bytes[3] == 3 && bytes[103] == 3 && bytes[203] == 3 && bytes[803] == 5);
}

static void child(void) {
    static int number;
    WORKS(VELOC_Mem_clear());
    WORKS(VELOC_Mem_protect(1, &number, 1, sizeof number));
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        FAILS(VELOC_Checkpoint("child", 1));
        FAILS(VELOC_Checkpoint_wait());
        UNKNOWN(VELOC_Restart_test("child", 0));
        FAILS(VELOC_Mem_clear());
        FAILS(VELOC_Finalize(1));
        exit(0); /* with what is done at exit */
    }
    int status = 1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    WORKS(VELOC_Checkpoint("child", 1));
    CHECK(VELOC_Restart_test("child", 0) == 1);
}

int main(int argc, char **argv) {
    CHECK(argc > 4);
    before_init(argv);
    WORKS(VELOC_Init_single(1, argv[1]));
    WORKS(VELOC_Init_single(1, argv[1])); /* again */
    arguments();
    order();
    sizes();
    memory();
    thread();
    places();
    child();
    WORKS(VELOC_Finalize(1));
    FAILS(VELOC_Finalize(1));
    FAILS(VELOC_Checkpoint("x", 9));
    WORKS(VELOC_Init_single(1, argv[1]));
    WORKS(VELOC_Finalize(0));
    FAILS(VELOC_Init_single(1, argv[4])); /* a directory that cannot be written */
    printf("all mistakes were survived\n");
    return 0;
}
