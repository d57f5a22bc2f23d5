/* The rival of `outcrop bench pool`: an array in a pool of libpmemobj that transactions change.
 * Compiled when the benchmark runs, if the library is there. Arguments: the file, the number of
 * elements. Each line of the input is a number of elements and a value; the answer is the time of
 * the transaction that sets them, in seconds. */
#include <libpmemobj.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    size_t elements = strtoull(arguments[2], NULL, 10), bytes = elements * sizeof(double);
    /* The log of a transaction over all of it, and the heap's own. */
    PMEMobjpool *pool = pmemobj_create(arguments[1], "bench", 3 * bytes + (64u << 20), 0600);
    if (pool == NULL) {
        fprintf(stderr, "%s\n", pmemobj_errormsg());
        return 1;
    }
    double *array = pmemobj_direct(pmemobj_root(pool, bytes));
    for (size_t index = 0; index < elements; index++) array[index] = 1.0;
    pmemobj_persist(pool, array, bytes);
    printf("ready\n");
    fflush(stdout);
    unsigned long long changed;
    double value;
    while (scanf("%llu %lf", &changed, &value) == 2) {
        volatile int failed = 0;
        double start = now();
        TX_BEGIN(pool) {
            pmemobj_tx_add_range_direct(array, changed * sizeof(double));
            for (size_t index = 0; index < changed; index++) array[index] = value;
        } TX_ONABORT {
            failed = 1;
        } TX_END
        if (failed) {
            fprintf(stderr, "%s\n", pmemobj_errormsg());
            return 1;
        }
        printf("%.9f\n", now() - start);
        fflush(stdout);
    }
    pmemobj_close(pool);
    return 0;
}
